"""Random eviction: each time, every leaf is as likely to go as any other."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from radiximp.policy.base import Key, Leaf
from radiximp.policy.baselines.ranked import RankedPolicy, WatchedIndex


class RandomPolicy(RankedPolicy):
    """A leaf draws an exponential lifetime when it enters an index; the first to expire goes.

    Lifetimes have no memory, so whoever is left is as good as new: the victim is uniform over the leaves, yet choosing
    changes nothing. `NodeHistory.weight` holds the expiry, on a clock that stands at the latest victim's.
    """

    name = "random"

    def __init__(self, seed: int = 0) -> None:
        self._rng = random.Random(seed)
        self._clock = 0.0

    def _draw(self, leaf: Leaf) -> None:
        leaf.history.weight = self._clock + self._rng.expovariate(1.0)

    def _note_evicted(self, leaf: Leaf) -> None:
        self._clock = max(self._clock, leaf.history.weight)

    def key(self, leaf: Leaf) -> Key:
        """When the leaf expires."""
        return (leaf.history.weight,)

    def new_index(self, prefix_of: Callable[[Any], tuple]) -> _DrawingIndex:
        """Leaves by expiry."""
        return _DrawingIndex(lambda leaf: (*prefix_of(leaf), *self.key(leaf)), self._note_evicted, self._draw)


class _DrawingIndex(WatchedIndex):
    def __init__(self, key_of, note_evicted, draw: Callable[[Any], None]) -> None:
        super().__init__(key_of, note_evicted)
        self._draw = draw

    def add(self, leaf: Any) -> None:
        if leaf not in self:
            self._draw(leaf)
        super().add(leaf)
