"""An ordered set of leaves whose values change with age: first element = next victim, exact at every instant.

A leaf belongs to a group; all leaves of a group share one curve of value over age, constant within
an age bin. So within a bin the oldest is first, and the group's candidate is the oldest leaf in its lowest occupied
bin. A candidate is looked for again only when its group changes, a bin edge could overtake it, or the curves change.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from sortedcontainers import SortedKeyList

from radiximp.policy.reuse_law import EDGES_S, NUM_BINS, bin_of

_EDGES = EDGES_S.tolist()


@dataclass(frozen=True, slots=True)
class Curve:
    """Value per age bin, and the bins from the lowest value up, of equal ones the older first."""

    values: Sequence[float]
    bins_by_value: Sequence[int]

    @classmethod
    def of(cls, values: Sequence[float]) -> Curve:
        """The curve with these values, [num_bins]."""
        return cls(values, sorted(range(NUM_BINS), key=lambda age_bin: (values[age_bin], -age_bin)))

    @classmethod
    def all_of(cls, values: np.ndarray) -> list[Curve]:
        """A curve for each row of [num_curves, num_bins]."""
        order = NUM_BINS - 1 - np.argsort(values[:, ::-1], axis=1, kind="stable")
        return [cls(*row) for row in zip(values.tolist(), order.tolist(), strict=True)]


def _enters_bin_s(entry: tuple, age_bin: int) -> float:
    """When a leaf comes of that age, a hair early: rounding must not make it late."""
    return entry[0] + _EDGES[age_bin] * (1 - 1e-9) - 1e-6 if age_bin < NUM_BINS else math.inf


class _Group:
    __slots__ = ("leaves", "version")

    def __init__(self) -> None:
        # (last use in seconds, tick, id, leaf), oldest first
        self.leaves: SortedKeyList = SortedKeyList(key=lambda entry: entry[:3])
        self.version = 0


class Curves(Protocol):
    """What an index reads of its policy."""

    now_s: float
    curves_version: int

    def curve_of(self, leaf: Any) -> tuple:
        """Which curve a leaf is on; it changes only where the leaf is touched."""

    def curve(self, *curve_of: Any) -> Curve:
        """Values by age bin."""


class ClassIndex(set):
    """Leaves ordered by (prefix, value of the class at the leaf's age bin, last use, tick, id).

    Owned by the scheduler thread. add, discard, touch: O(1) plus an amortised O(log n); first: O(log n) plus
    a few bisections per group that changed.
    """

    def __init__(self, policy: Curves, prefix_of: Callable[[Any], tuple]) -> None:
        super().__init__()
        self._policy = policy
        self._prefix_of = prefix_of
        self._curves_version = -1
        self._groups: dict[Hashable, _Group] = {}
        self._places: dict[Any, tuple] = {}
        self._pending: dict[Any, None] = {}
        self._dirty: set[Hashable] = set()
        self._candidates: list[tuple] = []
        self._recheck: list[tuple] = []
        self._num_versions = 0
        self.num_key_calls = 0

    # ---- membership: as a plain set of leaves ----

    def add(self, leaf: Any) -> None:
        """Put a leaf in; no effect if it is in already."""
        # Not `super()`: these two run twice per insert, and looking it up is half of what they cost.
        if leaf not in self:
            set.add(self, leaf)
            self._pending[leaf] = None

    def discard(self, leaf: Any) -> None:
        """Take a leaf out; no effect if it is not in."""
        if leaf in self:
            set.discard(self, leaf)
            self._pending.pop(leaf, None)
            self._take_out(leaf)

    def touch(self, leaf: Any) -> None:
        """Say that a leaf's group or last use may have changed; no effect if it is not in."""
        if leaf in self:
            self._pending[leaf] = None

    # ---- order ----

    def first(self, skip: set | frozenset = frozenset()) -> Any | None:
        """The lowest leaf that is not in `skip`, or None; changes nothing that a caller can see."""
        self._settle()
        if skip:
            return next((entry[-1] for entry in self.in_order() if entry[-1] not in skip), None)
        while self._candidates:
            *_, version, group_key, leaf = self._candidates[0]
            group = self._groups.get(group_key)
            if group is not None and group.version == version:
                return leaf
            heapq.heappop(self._candidates)
        return None

    def in_order(self) -> Iterator[tuple]:
        """(prefix..., value, last use, tick, id, leaf) from the lowest up; O(n log n)."""
        self._settle()
        return iter(sorted((self._entry(leaf) for leaf in self), key=lambda entry: entry[:-1]))

    def _entry(self, leaf: Any) -> tuple:
        history = leaf.history
        age_bin = bin_of(self._policy.now_s - history.last_use_s)
        value = self._policy.curve(*self._policy.curve_of(leaf)).values[age_bin]
        return (*self._prefix_of(leaf), value, history.last_use_s, history.last_use_tick, leaf.id, leaf)

    def _take_out(self, leaf: Any) -> None:
        place = self._places.pop(leaf, None)
        if place is not None:
            group_key, last_use_s, tick = place
            self._groups[group_key].leaves.remove((last_use_s, tick, leaf.id, leaf))
            self._dirty.add(group_key)

    def _settle(self) -> None:
        for leaf in self._pending:
            self.num_key_calls += 1
            prefix, history = self._prefix_of(leaf), leaf.history
            group_key = (prefix, *self._policy.curve_of(leaf))
            place = (group_key, history.last_use_s, history.last_use_tick)
            if self._places.get(leaf) == place:
                continue
            self._take_out(leaf)
            self._places[leaf] = place
            self._groups.setdefault(group_key, _Group()).leaves.add((*place[1:], leaf.id, leaf))
            self._dirty.add(group_key)
        self._pending.clear()
        if self._curves_version != self._policy.curves_version:
            self._curves_version = self._policy.curves_version
            self._dirty.update(self._groups)
        while self._recheck and self._recheck[0][0] <= self._policy.now_s:
            _, version, group_key = heapq.heappop(self._recheck)
            group = self._groups.get(group_key)
            if group is not None and group.version == version:
                self._dirty.add(group_key)
        for group_key in self._dirty:
            self._choose(group_key)
        self._dirty.clear()
        if len(self._candidates) > 64 + 4 * len(self._groups):
            self._compact()

    def _choose(self, group_key: Hashable) -> None:
        """Find the group's candidate and until when it stays one."""
        group = self._groups[group_key]
        group.version = self._num_versions = self._num_versions + 1
        leaves = group.leaves
        if not leaves:
            del self._groups[group_key]
            return
        prefix, *curve_of = group_key
        best, value, until_s = self._lowest(leaves, self._policy.curve(*curve_of))
        heapq.heappush(self._candidates, (prefix, value, *best[:3], group.version, group_key, best[3]))
        if until_s < math.inf:
            heapq.heappush(self._recheck, (until_s, group.version, group_key))

    def _lowest(self, leaves: SortedKeyList, curve: Curve) -> tuple[tuple, float, float]:
        """(candidate, its value, until when): the oldest leaf of the lowest bin that has one.

        A search per bin that is lower and empty, and one for that which is not.
        """
        oldest_bin = bin_of(self._policy.now_s - leaves[0][0])
        until_s = math.inf
        for age_bin in curve.bins_by_value:
            if age_bin >= oldest_bin:
                if age_bin == oldest_bin:
                    entry = leaves[0]
                    break
                # One further on is not reached before the candidate leaves its own, which is no wider.
                if age_bin == oldest_bin + 1:
                    until_s = min(until_s, _enters_bin_s(leaves[0], age_bin))
                continue
            entry = self._oldest_younger_than(leaves, age_bin + 1)
            if entry is None:
                continue
            if bin_of(self._policy.now_s - entry[0]) == age_bin:
                break
            # The bin is empty, and this is the first to enter it.
            until_s = min(until_s, _enters_bin_s(entry, age_bin))
        return entry, curve.values[age_bin], min(until_s, _enters_bin_s(entry, age_bin + 1))

    def _oldest_younger_than(self, leaves: SortedKeyList, age_bin: int) -> tuple | None:
        """The oldest leaf in a younger bin than that."""
        now_s = self._policy.now_s
        # A hair early: the search subtracts otherwise than an age is taken, and on an edge the two may round apart.
        for entry in leaves.irange_key((now_s - _EDGES[age_bin] - 1e-6,)):
            if bin_of(now_s - entry[0]) < age_bin:
                return entry
        return None

    def _compact(self) -> None:
        def is_live(version, group_key) -> bool:
            group = self._groups.get(group_key)
            return group is not None and group.version == version

        self._candidates = [c for c in self._candidates if is_live(c[-3], c[-2])]
        self._recheck = [r for r in self._recheck if is_live(r[1], r[2])]
        heapq.heapify(self._candidates)
        heapq.heapify(self._recheck)

    def _check(self) -> None:
        """Raise AssertionError unless the members, groups and first leaf are those of a full sort; O(n log n)."""
        self._settle()
        assert set(self._places) == set(self), "places and members differ"
        assert sum(len(group.leaves) for group in self._groups.values()) == len(self)
        first = min((self._entry(leaf)[:-1] for leaf in self), default=None)
        chosen = self.first()
        assert (chosen is None) == (first is None)
        assert chosen is None or self._entry(chosen)[:-1] == first, f"leaf {chosen.id} is not the lowest"

    def _unsupported(self, *args: Any) -> None:
        raise TypeError("ClassIndex changes through add, discard and touch only")

    remove = pop = clear = update = difference_update = intersection_update = _unsupported
