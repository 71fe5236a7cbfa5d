"""GreedyDual-Size-Frequency: uses x cost / size, over a clock that evictions push on.

    H(node) = L at its last use + uses x cost per token,   L = H of the latest victim

The cost of a token is what it takes to compute it again: its matrix products, and attention over all
before it. `NodeHistory.weight` holds H. Cherkasova, Improving WWW Proxies Performance with GDSF (1998).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from radiximp.policy.base import Key, Leaf, Path
from radiximp.policy.baselines.ranked import RankedPolicy, WatchedIndex

# At this depth attention costs as much as the rest of an 8B model: 2 x 8e9 FLOP / (4 x 4096 x 32 FLOP per token).
_EQUAL_COST_TOKENS = 1 << 15


class GDSF(RankedPolicy):
    """O(path) per request."""

    name = "gdsf"

    def __init__(self) -> None:
        self._inflation = 0.0

    def record_uses(self, path: Path, now_s: float, tick: int) -> None:
        """Raise each node to the clock plus its worth."""
        super().record_uses(path, now_s, tick)
        depth_tokens = 0
        for history, num_tokens in path:
            cost_per_token = 1 + (depth_tokens + num_tokens / 2) / _EQUAL_COST_TOKENS
            history.weight = self._inflation + history.num_queries * cost_per_token
            depth_tokens += num_tokens

    def _note_evicted(self, leaf: Leaf) -> None:
        self._inflation = max(self._inflation, leaf.history.weight)

    def forget(self) -> None:
        """Nothing: the clock must not go back while nodes carry its values."""

    def key(self, leaf: Leaf) -> Key:
        """(H, oldest use first)."""
        return (leaf.history.weight, leaf.history.last_use_tick)

    def new_index(self, prefix_of: Callable[[Any], tuple]) -> WatchedIndex:
        """Leaves by H; what leaves it as a victim moves the clock."""
        return WatchedIndex(lambda leaf: (*prefix_of(leaf), *self.key(leaf)), self._note_evicted)
