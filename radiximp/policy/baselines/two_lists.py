"""Two queues of which the policy says, as sizes change, which gives the next victim; both leave ghosts.

A node's list and size live in its history: `reuse_class` is one of the states below, `weight` its place
in the queue or among the ghosts, `held_tokens` what it counts for. So a cut node and a ghost that returns carry them along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from radiximp.policy.base import Key, Leaf
from radiximp.policy.baselines.ranked import RankedPolicy
from radiximp.policy.history import NodeHistory
from radiximp.policy.leaf_index import LeafIndex

UNSEEN, FIRST, SECOND, FIRST_GHOST, SECOND_GHOST = range(5)
_GHOST_OF = {FIRST: FIRST_GHOST, SECOND: SECOND_GHOST}


class TwoListPolicy(RankedPolicy):
    """Sizes in tokens, by state. A subclass says where a used node goes and which list is over its share.

    Keys change with a use and with an eviction: whenever one list gives way to the other, all of its leaves move.
    """

    def __init__(self) -> None:
        self._tokens = [0.0] * 5
        # Tokens that ever left each list as ghosts.
        self._num_evicted_tokens = {FIRST_GHOST: 0.0, SECOND_GHOST: 0.0}

    def restart(self, now_s: float) -> None:
        """Nothing is held any more."""
        self._tokens[FIRST] = self._tokens[SECOND] = 0.0

    @property
    def _num_resident_tokens(self) -> float:
        return self._tokens[FIRST] + self._tokens[SECOND]

    def _goes_first(self) -> int:
        """The list, FIRST or SECOND, that gives the next victim."""
        raise NotImplementedError

    def _ghost_tokens(self) -> float:
        """How many tokens of each list's ghosts count; older ones are as if never seen."""
        return self._num_resident_tokens

    def _state(self, history: NodeHistory) -> int:
        """The node's list as its next use finds it; a ghost table may remember longer than the list does."""
        state = history.reuse_class
        if state not in self._num_evicted_tokens:
            return state
        num_since = self._num_evicted_tokens[state] - history.weight
        return state if num_since < self._ghost_tokens() else UNSEEN

    def _move(self, history: NodeHistory, state: int, num_tokens: float) -> None:
        left = history.reuse_class
        self._tokens[left] = max(0.0, self._tokens[left] - history.held_tokens)
        history.reuse_class = state
        history.held_tokens = num_tokens
        self._tokens[state] += num_tokens

    def note_evicted(self, leaf: Leaf) -> None:
        """A victim turns into a ghost; no effect on a ghost, which a second tier evicts."""
        history = leaf.history
        ghost = _GHOST_OF.get(history.reuse_class)
        if ghost is not None:
            self._num_evicted_tokens[ghost] += history.held_tokens
            history.weight = self._num_evicted_tokens[ghost]
            self._move(history, ghost, history.held_tokens)
            self._tokens[ghost] = min(self._tokens[ghost], self._ghost_tokens())

    def key(self, leaf: Leaf) -> Key:
        """(0 in the list that gives the victim, place in the queue, oldest use first)."""
        history = leaf.history
        return (int(list_of(leaf) != self._goes_first()), history.weight, history.last_use_tick)

    def new_index(self, prefix_of: Callable[[Any], tuple]) -> TwoListIndex:
        """Leaves by list and place."""
        return TwoListIndex(self, prefix_of)


def list_of(leaf: Leaf) -> int:
    """FIRST or SECOND: the list that a leaf is in, or was evicted from."""
    return SECOND if leaf.history.reuse_class in (SECOND, SECOND_GHOST) else FIRST


class TwoListIndex(set):
    """An ordered queue per list; when the lists change places, no leaf is sorted again. Costs of `LeafIndex`."""

    def __init__(self, policy: TwoListPolicy, prefix_of: Callable[[Any], tuple]) -> None:
        super().__init__()
        self._policy = policy
        self._key_of = lambda leaf: (*prefix_of(leaf), *policy.key(leaf), leaf.id)

        def place(leaf: Any) -> tuple:
            return (*prefix_of(leaf), *policy.key(leaf)[1:])

        self._queues = {FIRST: LeafIndex(place), SECOND: LeafIndex(place)}
        self._chosen: Any = None

    def add(self, leaf: Any) -> None:
        """Put a leaf in; no effect if it is in already."""
        if leaf not in self:
            super().add(leaf)
            self._queues[list_of(leaf)].add(leaf)

    def discard(self, leaf: Any) -> None:
        """Take a leaf out; no effect if it is not in."""
        if leaf in self:
            if leaf is self._chosen:
                self._chosen = None
                self._policy.note_evicted(leaf)
            super().discard(leaf)
            for queue in self._queues.values():
                queue.discard(leaf)

    def touch(self, leaf: Any) -> None:
        """Say that a leaf's list or place may have changed; no effect if it is not in."""
        if leaf in self:
            here = list_of(leaf)
            self._queues[FIRST + SECOND - here].discard(leaf)
            self._queues[here].add(leaf)
            self._queues[here].touch(leaf)

    def first(self, skip: set | frozenset = frozenset()) -> Any | None:
        """The lowest leaf that is not in `skip`, or None; changes nothing that a caller can see."""
        leaves = [leaf for queue in self._queues.values() if (leaf := queue.first(skip)) is not None]
        self._chosen = min(leaves, key=self._key_of, default=None)
        return self._chosen

    def in_order(self) -> Iterator[tuple]:
        """(key..., id, leaf) from the lowest key up; O(n log n)."""
        return iter(sorted((*self._key_of(leaf), leaf) for leaf in self))

    def _check(self) -> None:
        """Raise AssertionError unless every leaf is in its list's queue, in order; O(n log n)."""
        assert self._queues[FIRST] | self._queues[SECOND] == self
        for name, queue in self._queues.items():
            queue._check()
            assert all(list_of(leaf) == name for leaf in queue)

    def _unsupported(self, *args: Any) -> None:
        raise TypeError("TwoListIndex changes through add, discard and touch only")

    remove = pop = clear = update = difference_update = intersection_update = _unsupported
