"""An ordered set of evictable leaves: the first element is the next victim.

A drop-in for the plain sets of leaves that SGLang's tree keeps; it never decides what is a leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any

from sortedcontainers import SortedList

# Touched leaves wait here until an eviction asks for the order, so that a cache without
# pressure pays a dict store per touch. The bound keeps the first eviction after a quiet
# hour as cheap as any other.
_MAX_PENDING = 512


class LeafIndex(set):
    """A set ordered by `key_of`, lowest first; ties break by the leaf's `id`.

    Owned by the scheduler thread. add, discard, touch: O(1) plus an amortised O(log n);
    first: O(log n) amortised. Keys are read again only for leaves that were added or touched.

    >>> class Leaf:
    ...     def __init__(self, id, score):
    ...         self.id, self.score = id, score
    >>> a, b = Leaf(1, 2.0), Leaf(2, 1.0)
    >>> index = LeafIndex(lambda leaf: (leaf.score,))
    >>> index.add(a); index.add(b); index.first() is b
    True
    >>> b.score = 3.0; index.touch(b); index.first() is a
    True
    """

    def __init__(self, key_of: Callable[[Any], tuple]) -> None:
        super().__init__()
        self._key_of = key_of
        self._order: SortedList = SortedList()
        self._entries: dict[Hashable, tuple] = {}
        self._pending: dict[Hashable, None] = {}
        self.num_key_calls = 0

    def add(self, leaf: Any) -> None:
        """Put a leaf in; no effect if it is in already (use `touch` when its key changed)."""
        if leaf not in self:
            super().add(leaf)
            self._note(leaf)

    def discard(self, leaf: Any) -> None:
        """Take a leaf out; no effect if it is not in."""
        if leaf in self:
            super().discard(leaf)
            self._pending.pop(leaf, None)
            entry = self._entries.pop(leaf, None)
            if entry is not None:
                self._order.remove(entry)

    def touch(self, leaf: Any) -> None:
        """Say that a leaf's key may have changed; no effect if it is not in."""
        if leaf in self:
            self._note(leaf)

    def first(self, skip: set | frozenset = frozenset()) -> Any | None:
        """The leaf with the lowest key that is not in `skip`, or None; changes nothing that a caller can see."""
        self._settle()
        for entry in self._order:
            if entry[-1] not in skip:
                return entry[-1]
        return None

    def in_order(self) -> Iterator[tuple]:
        """(key..., id, leaf) from the lowest key up; do not change the index meanwhile."""
        self._settle()
        return iter(self._order)

    def _note(self, leaf: Any) -> None:
        self._pending[leaf] = None
        if len(self._pending) > _MAX_PENDING:
            self._settle()

    def _settle(self) -> None:
        for leaf in self._pending:
            entry = (*self._key_of(leaf), leaf.id, leaf)
            self.num_key_calls += 1
            old = self._entries.get(leaf)
            if old is not None:
                if old == entry:
                    continue
                self._order.remove(old)
            self._entries[leaf] = entry
            self._order.add(entry)
        self._pending.clear()

    def _check(self) -> None:
        """Raise AssertionError unless order, entries and keys agree; O(n log n)."""
        self._settle()
        assert set(self._entries) == set(self), "entries and members differ"
        assert len(self._order) == len(self)
        self._order._check()
        for leaf, entry in self._entries.items():
            assert entry == (*self._key_of(leaf), leaf.id, leaf), f"stale key of leaf {leaf.id}"

    def _unsupported(self, *args: Any) -> None:
        raise TypeError("LeafIndex changes through add, discard and touch only")

    remove = pop = clear = update = difference_update = intersection_update = _unsupported
