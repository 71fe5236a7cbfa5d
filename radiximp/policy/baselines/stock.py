"""SGLang's own policies, ranked as its `mem_cache/evict_policy.py` ranks them (0.5.23).

They see what SGLang's nodes show: the logical times of last access and creation, inserts since the node
was made (an evicted node starts again), and the highest priority of a request.
"""

from __future__ import annotations

from collections.abc import Callable

from radiximp.policy.base import Key, Leaf, Path
from radiximp.policy.baselines.ranked import RankedPolicy, tokens_before

_PROTECTED_HIT_COUNT = 2

RANKS: dict[str, Callable[[Leaf], Key]] = {
    "lru": lambda leaf: (leaf.last_access_time,),
    "lfu": lambda leaf: (leaf.hit_count, leaf.last_access_time),
    "slru": lambda leaf: (leaf.hit_count >= _PROTECTED_HIT_COUNT, leaf.last_access_time),
    "fifo": lambda leaf: (leaf.creation_time,),
    "mru": lambda leaf: (-leaf.last_access_time,),
    "filo": lambda leaf: (-leaf.creation_time,),
    "priority": lambda leaf: (leaf.priority, leaf.last_access_time),
}


class StockPolicy(RankedPolicy):
    """One of `RANKS`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.key = RANKS[name]


class TLRU(RankedPolicy):
    """Tail-optimised LRU: the end of a conversation that a latency budget can recompute goes first.

    Of a branch that was once `deepest` tokens long, what lies beyond deepest + next_prompt_tokens - threshold_tokens
    is free to go; the rest is lru. With SGLang's defaults, 0 and 0, it is lru. `NodeHistory.reuse_class` holds the
    deepest, in tokens. Zhang et al., arXiv:2510.15152.
    """

    name = "tlru"

    def __init__(self, threshold_tokens: int = 0, next_prompt_tokens: int = 0) -> None:
        self._slack_tokens = threshold_tokens - next_prompt_tokens

    def record_end(self, path: Path, finish: str, output_tokens: int, now_s: float) -> None:
        """Note how deep each node's branch has been."""
        deepest = sum(num_tokens for _, num_tokens in path)
        for history, _ in path:
            history.reuse_class = max(history.reuse_class, deepest)

    def key(self, leaf: Leaf) -> Key:
        """(whether it must stay within the budget, last access)."""
        kept_tokens = max(leaf.history.reuse_class - self._slack_tokens, 0)
        return (0 if tokens_before(leaf) < kept_tokens else -1, leaf.last_access_time)
