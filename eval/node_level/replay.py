"""Hit rates with importance true, zero and shuffled: the production policy in the replay's tree, fed with what was observed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from eval.node_level.traffic import PAGE_TOKENS, Arrival
from radiximp.config import PolicyConfig
from radiximp.importance.shuffle import Shuffler
from radiximp.replay.engine import hit_pages
from radiximp.replay.run import new_tree
from radiximp.replay.tree import Node, ReplayTree

CONTROLS = {"importance": {}, "importance-zero": {"importance_weight": 0.0}, "importance-shuffled": {}}
POLICIES = ("lru", "slru", "lfu", *CONTROLS)
WARMUP = 0.2


def replayed(arrivals: Sequence[Arrival], policy: str, capacity_pages: int) -> dict:
    """Prompt and hit tokens after the warm-up, and the bits of information that the policy itself sees."""
    config = PolicyConfig(**CONTROLS.get(policy, {}))
    tree = new_tree(policy.partition("-")[0], config, PAGE_TOKENS)
    tree.policy.note_capacity(capacity_pages * PAGE_TOKENS)
    shuffler = Shuffler() if policy == "importance-shuffled" else None
    prompt_tokens = hit_tokens = 0
    for number, arrival in enumerate(arrivals):
        turn, now_s = arrival.turn, arrival.at_s
        path = tree.match("", turn.page_ids)
        found, _ = hit_pages(path)
        if number >= WARMUP * len(arrivals):
            prompt_tokens += turn.num_tokens
            hit_tokens += found * PAGE_TOKENS
        tree.extend(path, "", turn.page_ids[found:])
        tree.record(path, now_s)
        if policy in CONTROLS:
            observe(path, turn.densities, config, shuffler)
        tree.record_end(path, "", turn.output_tokens, now_s)
        if tree.device_pages > capacity_pages:
            tree.evict(tree.device_pages - capacity_pages, now_s)
    bits = _bits(tree, arrivals[-1].at_s) if policy in CONTROLS else None
    return {"prompt_tokens": prompt_tokens, "hit_tokens": hit_tokens, "bits": bits}


def observe(
    path: Sequence[Node], densities: np.ndarray, config: PolicyConfig, shuffler: Shuffler | None
) -> None:
    """Fold one prompt's densities into the nodes of its path, as the server's tree does."""
    observed, position = [], 0
    for node in path:
        values = densities[position : position + len(node)]
        values = values[~np.isnan(values)]
        position += len(node)
        if len(values):
            observed.append((float(values.mean()), len(values) * PAGE_TOKENS, node))
    if shuffler is not None:
        dealt = shuffler.deal([density for density, _, _ in observed])
        observed = [(density, *rest) for density, (_, *rest) in zip(dealt, observed, strict=True)]
    num_top = max(1, math.ceil(config.top_fraction * len(observed)))
    order = sorted(range(len(observed)), key=lambda i: (-observed[i][0], i))
    top = set(order[:num_top])
    for i, (density, num_tokens, node) in enumerate(observed):
        node.history.observe(density, num_tokens, i in top, config)


def _bits(tree: ReplayTree, now_s: float) -> float | None:
    return tree.policy.information_gain_bits(now_s)
