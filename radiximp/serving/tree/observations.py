"""What an annotated tree does with attention: `observe` folds one query's into the nodes, `get_importance` reads it.

Where it comes from is no concern of the tree: the attention tap calls `observe`, and so may anybody.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.utils import get_storage_hash_str

from radiximp.config import PolicyConfig
from radiximp.importance.shuffle import Shuffler
from radiximp.policy.gittins import GittinsPolicy
from radiximp.serving import attention_tap

# No page can draw more than all attention; a million pages is beyond any context.
_MAX_DENSITY = 1e6
# Newest node densities that the statistics are about.
_MAX_RECENT = 1024


class TreeObservations:
    """Mixin of `ImportanceTreeCore`; O(path) per call unless said otherwise."""

    def _start_observations(self, config: PolicyConfig) -> None:
        self.num_observations = 0
        self.observed_layers: list[int] = []
        self._recent_densities: deque[float] = deque(maxlen=_MAX_RECENT)
        self._shuffler = Shuffler() if config.importance_scorer == "shuffled" else None

    def observe(self, key: RadixKey, page_densities: Sequence[float]) -> int:
        """Fold one query's attention into the nodes along `key`; returns how many nodes took it.

        page_densities: [num_pages] non-negative floats, mass share / token share of each page of the
        prefix (1.0 = as attended as the average token), already reduced over ranks; NaN where the query tells
        nothing. Pages beyond the prefix that is in the tree are ignored. Raises ValueError, with nothing changed, for a density
        outside 0 to 1e6.
        """
        densities = np.asarray(page_densities, dtype=np.float64)
        known = ~np.isnan(densities)
        wrong = known & ~((densities >= 0) & (densities <= _MAX_DENSITY))
        if wrong.any():
            raise ValueError(
                f"page_densities: expected numbers from 0 to {_MAX_DENSITY:g}, got {densities[wrong][0]!r}"
            )
        self.uses.settle()
        observed = []
        for node, start, matched in self._walk(key):
            pages = slice(start // self.page_size, (start + matched) // self.page_size)
            values = densities[pages][known[pages]]
            if len(values):
                observed.append((float(values.mean()), len(values) * self.page_size, node))
        if self._shuffler is not None:
            dealt = self._shuffler.deal([density for density, _, _ in observed])
            observed = [(density, *rest) for density, (_, *rest) in zip(dealt, observed, strict=True)]
        with self.tally.timing("observe"):
            self._fold_in(observed)
        self.num_observations += bool(observed)
        return len(observed)

    def _fold_in(self, observed: list[tuple]) -> None:
        """(density, tokens, node) of one query."""
        num_top = max(1, math.ceil(self.config.top_fraction * len(observed)))
        order = sorted(range(len(observed)), key=lambda i: (-observed[i][0], i))
        top = set(order[:num_top])
        for i, (density, num_tokens, node) in enumerate(observed):
            self._note_observation(node, density, num_tokens, i in top)
            self._recent_densities.append(density)
            self.tally.density.add(density)
            self.touch_leaf(node)

    def _note_observation(self, node, density: float, num_tokens: int, is_top: bool) -> None:
        self.history_of(node).observe(density, num_tokens, is_top, self.config)

    def get_importance(self, node: int | str) -> float:
        """Aggregated attention density of a node, by its id or by the hash of one of its pages as SGLang names
        them in storage and KV events (O(nodes)); 1.0 before any observation. KeyError if it is not there.
        """
        if isinstance(node, int):
            return self.history_of(self.node_by_id(node)).density
        for found in self._node_arena.values():
            if found is not self.root_node and node in self._page_hashes(found):
                return self.history_of(found).density
        raise KeyError(node)

    def _page_hashes(self, node) -> list[str]:
        if node.hash_value is not None:
            return node.hash_value
        # The hash of a page continues that of the page before it, which the parent ends with.
        before = None if node.parent is self.root_node else self._page_hashes(node.parent)[-1]
        return get_storage_hash_str(node.key, before, page_size=self.page_size)

    def observation_stats(self) -> dict:
        """For `/radiximp/stats`: queries observed, and quantiles of the newest nodes' densities (null before any)."""
        recent = np.array(self._recent_densities)
        quantiles = np.quantile(recent, (0.1, 0.5, 0.9)).tolist() if len(recent) else [None] * 3
        return {
            "scorer": self.config.importance_scorer,
            "backend": attention_tap.backend,
            "not_observed_because": attention_tap.why_none,
            "observed_layers": self.observed_layers,
            "observations": self.num_observations,
            "density": dict(zip(("p10", "p50", "p90"), quantiles, strict=True)),
            "information_gain_bits": self.information_gain_bits(),
        }

    def information_gain_bits(self) -> float | None:
        """What densities tell of reuse beyond the other features, in bits per reuse; None before there is evidence."""
        if not isinstance(self.policy, GittinsPolicy):
            return None
        return self.policy.information_gain_bits(self.clock.now_s())
