"""GreedyDual-Size-Frequency: uses x cost / size, over a clock that evictions push on.

    H(node) = L at its last use + uses x cost per token,   L = H of the latest victim

The cost of a token is what it takes to compute it again: its matrix products, and attention over all
before it. `NodeHistory.weight` holds L at the last use. Cherkasova, Improving WWW Proxies Performance with GDSF (1998).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from radiximp.policy.base import Key, Leaf
from radiximp.policy.baselines.ranked import RankedPolicy, WatchedIndex, tokens_before
from radiximp.policy.history import NodeHistory

# At this depth attention costs as much as the rest of an 8B model: 2 x 8e9 FLOP / (4 x 4096 x 32 FLOP per token).
_EQUAL_COST_TOKENS = 1 << 15


class GDSF(RankedPolicy):
    """O(path) per request."""

    name = "gdsf"

    def __init__(self) -> None:
        self._inflation = 0.0

    def _use(self, history: NodeHistory, num_tokens: int) -> None:
        history.weight = self._inflation

    def _note_evicted(self, leaf: Leaf) -> None:
        self._inflation = max(self._inflation, self.key(leaf)[0])

    def key(self, leaf: Leaf) -> Key:
        """(H, oldest use first)."""
        history = leaf.history
        middle_tokens = tokens_before(leaf) + history.held_tokens / 2
        cost_per_token = 1 + middle_tokens / _EQUAL_COST_TOKENS
        return (history.weight + history.num_queries * cost_per_token, history.last_use_tick)

    def new_index(self, prefix_of: Callable[[Any], tuple]) -> WatchedIndex:
        """Leaves by H; what leaves it as a victim moves the clock."""
        return WatchedIndex(lambda leaf: (*prefix_of(leaf), *self.key(leaf)), self._note_evicted)
