"""What the baselines share: plain bookkeeping of uses, one ordered index, and word of what was evicted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from radiximp.policy.base import Leaf, Path, Policy
from radiximp.policy.leaf_index import LeafIndex


class RankedPolicy(Policy):
    """A policy whose keys change only when their node is used. O(path) per request, O(1) per key."""

    def record_uses(self, path: Path, now_s: float, tick: int) -> None:
        """Count one use of each node; the subclass may add to it."""
        for history, num_tokens in path:
            self._use(history, num_tokens)
            history.num_queries += 1
            history.held_tokens = num_tokens
            history.last_use_s = now_s
            history.last_use_tick = tick
            tick += 1

    def _use(self, history: Any, num_tokens: int) -> None:
        """One node is used; its history is still as the last use left it."""

    def new_index(self, prefix_of: Callable[[Any], tuple]) -> LeafIndex:
        """Leaves by rank."""
        return LeafIndex(lambda leaf: (*prefix_of(leaf), *self.key(leaf)))


def tokens_before(leaf: Leaf) -> float:
    """Tokens from the root to where the leaf starts, as recorded; O(nodes above)."""
    num_tokens, above = 0.0, leaf.parent
    while above.parent is not None:
        num_tokens += above.history.held_tokens
        above = above.parent
    return num_tokens


class WatchedIndex(LeafIndex):
    """Tells its owner what was evicted: the leaf that was chosen last and then left the index."""

    def __init__(self, key_of: Callable[[Any], tuple], note_evicted: Callable[[Any], None]) -> None:
        super().__init__(key_of)
        self._note_evicted = note_evicted
        self._chosen: Any = None

    def first(self, skip: set | frozenset = frozenset()) -> Any | None:
        """As `LeafIndex.first`."""
        self._chosen = super().first(skip)
        return self._chosen

    def discard(self, leaf: Any) -> None:
        """As `LeafIndex.discard`."""
        if leaf is self._chosen and leaf in self:
            self._chosen = None
            self._note_evicted(leaf)
        super().discard(leaf)
