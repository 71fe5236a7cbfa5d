"""The index over leaves with constant keys against a plain sort."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from radiximp.policy.leaf_index import LeafIndex


class Leaf:
    def __init__(self, number: int, score: float) -> None:
        self.id, self.score = number, score


class IndexMachine(RuleBasedStateMachine):
    """`LeafIndex` against `min` over a plain set, with more touches than it lets wait."""

    def __init__(self):
        super().__init__()
        self.leaves = [Leaf(number, float(number % 7)) for number in range(20)]
        self.index = LeafIndex(lambda leaf: (leaf.score,))
        self.members: set[Leaf] = set()

    @rule(number=st.integers(0, 19))
    def add(self, number):
        self.index.add(self.leaves[number])
        self.members.add(self.leaves[number])

    @rule(number=st.integers(0, 19))
    def discard(self, number):
        self.index.discard(self.leaves[number])
        self.members.discard(self.leaves[number])

    @rule(number=st.integers(0, 19), score=st.floats(-9, 9))
    def change(self, number, score):
        self.leaves[number].score = score
        self.index.touch(self.leaves[number])

    @rule(skipped=st.sets(st.integers(0, 19)))
    def first(self, skipped):
        skip = {self.leaves[number] for number in skipped}
        expected = min(self.members - skip, key=lambda leaf: (leaf.score, leaf.id), default=None)
        assert self.index.first(skip) is expected

    @invariant()
    def agrees(self):
        assert self.index == self.members
        self.index._check()


TestLeafIndex = IndexMachine.TestCase


def test_the_index_bounds_what_waits():
    index = LeafIndex(lambda leaf: (leaf.score,))
    leaves = [Leaf(number, -number) for number in range(5000)]
    for leaf in leaves:
        index.add(leaf)
    assert len(index._pending) <= 512
    assert index.first() is leaves[-1]


@pytest.mark.parametrize("change", ["remove", "pop", "clear", "update"])
def test_the_index_changes_only_where_it_can_follow(change):
    with pytest.raises(TypeError, match="add, discard and touch only"):
        getattr(LeafIndex(lambda leaf: ()), change)()
