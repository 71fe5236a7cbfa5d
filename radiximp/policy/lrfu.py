"""Importance-weighted LRFU: each use counts its node's importance and decays by a half-life.

    score(node, t) = density^importance_weight x sum over uses of w_i x 2^(-(t - t_i) / half_life)

All scores decay by the same factor, so their order is that of log2(score) carried back to time
zero, a number that changes only when the node itself is used or observed. Lee et al., LRFU (2001).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from math import exp2
from typing import Any

from radiximp.config import PolicyConfig
from radiximp.policy.base import Key, Leaf, Path, Policy
from radiximp.policy.leaf_index import LeafIndex

# An unattended node keeps a positive score, so that its recency still orders it.
_MIN_DENSITY = 1 / 64


class ImportanceLRFU(Policy):
    """O(1) per use and per key. `half_life_s` 0 is the limit in which only the last access counts."""

    name = "importance"

    def __init__(self, config: PolicyConfig) -> None:
        self.config = config

    def record_uses(self, path: Path, now_s: float, tick: int) -> None:
        """Add one use to each node; a use soon after the last one (`burst_s`) adds less than 1."""
        config = self.config
        for history, _ in path:
            if history.num_queries == 0 or config.is_lru:
                history.weight = 1.0
            else:
                gap_s = now_s - history.last_use_s
                added = 1.0 if config.burst_s == 0 else 1 - exp2(-gap_s / config.burst_s)
                weight = history.weight * exp2(-gap_s / config.half_life_s) + added
                history.weight = min(weight, config.max_uses)
            history.num_queries += 1
            history.last_use_s = now_s
            history.last_use_tick = tick
            tick += 1

    def key(self, leaf: Leaf) -> Key:
        """(log-domain score, tie-break by oldest use)."""
        history = leaf.history
        if self.config.is_lru:
            return (leaf.last_access_time, 0)
        # weight is positive: 1 at the first use, and every later use adds what it decayed by or less.
        score = math.log2(max(history.weight, 1e-300)) + history.last_use_s / self.config.half_life_s
        if history.importance is not None:
            score += self.config.importance_weight * math.log2(max(history.density, _MIN_DENSITY))
        return (score, history.last_use_tick)

    def new_index(self, prefix_of: Callable[[Any], tuple]) -> LeafIndex:
        """Leaves by score."""
        return LeafIndex(lambda leaf: (*prefix_of(leaf), *self.key(leaf)))
