"""The learned law against plain arithmetic, the Gittins index against a direct maximum, the index against a sort."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from radiximp.config import PolicyConfig
from radiximp.policy.class_index import ClassIndex, Curve
from radiximp.policy.gittins import GittinsPolicy, _expected
from radiximp.policy.history import NodeHistory
from radiximp.policy.reuse_law import EDGES_S, NUM_BINS, ReuseLaw, bin_of, gittins_index
from radiximp.policy.saved_law import SavedLawError, dump_law, load_law

WIDTHS_S = np.append(np.diff(EDGES_S), EDGES_S[-1])


@given(st.floats(0, 1e6))
def test_an_age_is_within_its_bin(age_s):
    age_bin = bin_of(age_s)
    assert EDGES_S[age_bin] <= age_s
    assert age_bin == NUM_BINS - 1 or age_s < EDGES_S[age_bin + 1]


@settings(max_examples=50)
@given(st.lists(st.floats(1e-7, 10), min_size=NUM_BINS, max_size=NUM_BINS))
def test_the_index_is_the_best_ratio_over_all_windows(hazards):
    table = gittins_index(np.array([hazards]))[0]
    for start in range(0, NUM_BINS, 5):
        best, survival, reuse, held_s = 0.0, 1.0, 0.0, 0.0
        for hazard, width in zip(hazards[start:], WIDTHS_S[start:], strict=True):
            q = -math.expm1(-hazard * width)
            reuse += survival * q
            held_s += survival * q / hazard
            survival *= 1 - q
            best = max(best, reuse / held_s)
        assert table[start] == pytest.approx(best, rel=1e-9)


def test_a_cold_law_ranks_older_lower():
    law = ReuseLaw(7200, 2, 64, 64)
    law.class_id((0,))
    assert (np.diff(law.refresh(0.0), axis=1) < 0).all()


def test_what_comes_back_at_one_age_is_worth_most_just_before_it():
    law = ReuseLaw(1e9, 0.1, 4096, 64)
    number, never = law.class_id((0,)), law.class_id((1,))
    for start in range(200):
        span = law.open(number, start * 100.0, 10)
        law.open(never, start * 100.0, 10)
        law.close(span, start * 100.0 + 30, 10)
    table = law.refresh(20_000.0)
    assert table[number, bin_of(25)] > table[number, bin_of(1)] > table[number, bin_of(60)]
    assert table[never].max() < table[number, bin_of(25)] / 10


def test_exposure_of_what_is_idle_equals_that_of_what_ended():
    """Time idle is evidence, whether or not it has ended."""
    tables = []
    for ends in (False, True):
        law = ReuseLaw(7200, 1, 64, 64)
        for number in range(40):
            law.open(law.class_id((number % 3,)), number * 7.0, 5)
        if ends:
            law.end_spans(400.0)
        tables.append(law.refresh(400.0))
    np.testing.assert_allclose(tables[0], tables[1], rtol=1e-9)


def test_a_retracted_or_forgotten_span_teaches_nothing():
    law, plain = ReuseLaw(7200, 1, 4, 64), ReuseLaw(7200, 1, 4, 64)
    for each in (law, plain):
        each.class_id((0,))
    span = law.open(0, 0.0, 5)
    law.retract(span, 5)
    law.close(span, 10.0, 5)
    law.close(-1, 10.0, 5)
    law.close(span - 100, 10.0, 5)
    assert not law._reuse.any() and not law._exposure_s.any()


def test_classes_are_bounded():
    law = ReuseLaw(7200, 1, 64, 8)
    law.class_id(())
    numbers = {law.class_id((number % 3, number)) for number in range(1000)}
    assert law.num_classes == 8 and max(numbers) < 8


def test_features_without_evidence_leave_the_estimate_unchanged():
    """A feature that does not divide what was seen does not count the same evidence again."""
    tables = []
    for features in ((0,), (0, 0), (0, 0, 0, 0)):
        law = ReuseLaw(7200, 1, 64, 64)
        number = law.class_id(features)
        for start in range(20):
            law.close(law.open(number, start * 10.0, 5), start * 10.0 + 3, 5)
        tables.append(law.refresh(200.0)[number])
    np.testing.assert_allclose(tables[0], tables[1])
    np.testing.assert_allclose(tables[0], tables[2])


def test_forgetting_is_a_cold_start():
    policy, fresh = GittinsPolicy(PolicyConfig()), GittinsPolicy(PolicyConfig())
    history = NodeHistory(0.0, 0)
    for number in range(20):
        policy.record_uses([(history, 10)], number * 5.0, number)
        policy.record_end([(history, 10)], "end_turn", 50, number * 5.0)
    policy.advance(200.0)
    policy.forget()
    policy.advance(200.0)
    fresh.advance(200.0)
    np.testing.assert_allclose(policy.curve(0).values, fresh.curve(0).values, rtol=1e-9)


def test_a_burst_is_no_return():
    policy, history = GittinsPolicy(PolicyConfig()), NodeHistory(0.0, 0)
    for number in range(6):
        policy.record_uses([(history, 10)], number * 0.01, number)
        policy.record_end([(history, 10)], "", 0, number * 0.01)
    assert (history.num_queries, history.num_returns) == (6, 0)


@dataclass(eq=False)
class Leaf:
    id: int
    history: NodeHistory = field(default_factory=lambda: NodeHistory(0.0, 0))


class FakeCurves:
    """Curves that a test sets: any shape, also rising ones."""

    def __init__(self) -> None:
        self.now_s, self.curves_version = 0.0, 0
        self.values = [[1.0] * NUM_BINS] * 3

    def curve_of(self, leaf) -> tuple:
        return (leaf.history.reuse_class,)

    def curve(self, reuse_class: int) -> Curve:
        return Curve.of(self.values[reuse_class])


class ClassIndexMachine(RuleBasedStateMachine):
    """`ClassIndex` against `min` over a plain set while time passes and curves change."""

    def __init__(self):
        super().__init__()
        self.curves = FakeCurves()
        self.leaves = [Leaf(number) for number in range(24)]
        self.pinned: set[int] = set()
        self.index = ClassIndex(self.curves, lambda leaf: (leaf.id in self.pinned,))
        self.members: set[Leaf] = set()

    @rule(number=st.integers(0, 23))
    def add(self, number):
        self.index.add(self.leaves[number])
        self.members.add(self.leaves[number])

    @rule(number=st.integers(0, 23))
    def discard(self, number):
        self.index.discard(self.leaves[number])
        self.members.discard(self.leaves[number])

    @rule(number=st.integers(0, 23), reuse_class=st.integers(0, 2))
    def use(self, number, reuse_class):
        history = self.leaves[number].history
        history.reuse_class, history.last_use_s = reuse_class, self.curves.now_s
        history.last_use_tick += 1
        self.index.touch(self.leaves[number])

    @rule(number=st.integers(0, 23))
    def pin(self, number):
        self.pinned ^= {number}
        self.index.touch(self.leaves[number])

    @rule(seconds=st.sampled_from([0.01, 0.25, 0.3, 1, 2, 4, 5, 40, 1000, 50_000]))
    def wait(self, seconds):
        self.curves.now_s += seconds

    @rule(reuse_class=st.integers(0, 2), data=st.data())
    def change(self, reuse_class, data):
        level = st.integers(0, 4).map(float)
        values = data.draw(st.lists(level, min_size=NUM_BINS, max_size=NUM_BINS))
        self.curves.values = [*self.curves.values]
        self.curves.values[reuse_class] = sorted(values, reverse=True) if data.draw(st.booleans()) else values
        self.curves.curves_version += 1

    def rank(self, leaf):
        history = leaf.history
        value = self.curves.values[history.reuse_class][bin_of(self.curves.now_s - history.last_use_s)]
        return (leaf.id in self.pinned, value, history.last_use_s, history.last_use_tick, leaf.id)

    @invariant()
    def agrees(self):
        assert self.index == self.members
        assert self.index.first() is min(self.members, key=self.rank, default=None)
        self.index._check()
        skip = set(list(self.members)[:3])
        assert self.index.first(skip) is min(self.members - skip, key=self.rank, default=None)


TestClassIndex = ClassIndexMachine.TestCase
TestClassIndex.settings = settings(max_examples=150, stateful_step_count=60)


def _taught(num_uses: int = 300) -> tuple[GittinsPolicy, list[NodeHistory]]:
    policy = GittinsPolicy(PolicyConfig())
    histories = [NodeHistory(0.0, 0) for _ in range(30)]
    for number in range(num_uses):
        path = [(histories[number * number % 30], 10)]
        policy.record_uses(path, number * 2.0, number)
        policy.record_end(path, ("end_turn", "tool_use")[number % 2], number % 90, number * 2.0)
    return policy, histories


def test_a_saved_law_ranks_as_the_one_that_was_saved():
    policy, _ = _taught()
    data = dump_law(policy.law, 700.0, "model")
    loaded = ReuseLaw(7200, 2, 1 << 16, 1 << 11, _expected)
    load_law(loaded, data, "model")
    assert loaded.num_classes == policy.law.num_classes
    policy.law.end_spans(700.0)
    np.testing.assert_allclose(loaded.refresh(0.0), policy.law.refresh(700.0), rtol=1e-9)


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda data: data[:-9], "expected the JSON that radiximp writes"),
        (lambda data: b"[]", "expected a radiximp law of version 1"),
        (
            lambda data: data.replace(b'"radiximp_law":1', b'"radiximp_law":2'),
            "expected a radiximp law of version 1",
        ),
        (
            lambda data: data.replace(b'"mean_span_tokens":10', b'"mean_span_tokens":11'),
            "the digest does not match",
        ),
        (lambda data: data.replace(b"model", b"other"), "the digest does not match"),
    ],
)
def test_a_damaged_law_is_refused_and_changes_nothing(damage, message):
    data = dump_law(_taught()[0].law, 700.0, "model")
    law = ReuseLaw(7200, 2, 64, 64)
    with pytest.raises(SavedLawError, match=message):
        load_law(law, damage(data), "model")
    with pytest.raises(SavedLawError, match="learned with model 'model', this server runs 'x'"):
        load_law(law, data, "x")
    assert law.num_classes == 0


def test_what_is_used_after_forgetting_teaches_a_fresh_law():
    """Nodes keep class and span numbers of the law before: neither may be taken for a new one's."""
    policy, histories = _taught()
    policy.forget()
    for number, history in enumerate(histories):
        policy.record_uses([(history, 10)], 700.0, 1000 + number)
    assert not policy.law._reuse.any()
    policy.advance(700.0)
    assert all(policy.curve(history.reuse_class).values for history in histories)


def test_what_ended_on_a_tool_call_is_expected_at_the_gap_of_its_class():
    policy, now_s = GittinsPolicy(PolicyConfig()), 0.0
    for _ in range(200):
        path = [(NodeHistory(now_s, 0), 100)]
        for finish in ("tool_use", "end_turn"):  # the tool takes a minute; then nobody comes back
            policy.record_uses(path, now_s, 1)
            policy.record_end(path, finish, 30, now_s)
            now_s += 60.0 if finish == "tool_use" else 1.0
    paused, over = NodeHistory(now_s, 0), NodeHistory(now_s, 0)
    for history, finish in ((paused, "tool_use"), (over, "end_turn")):
        policy.record_uses([(history, 100)], now_s, 1)
        policy.record_end([(history, 100)], finish, 30, now_s)
    policy.refresh(now_s)
    policy.advance(now_s + 45)
    assert policy.chance_within(paused, 30.0) > 0.5 > 0.1 > policy.chance_within(over, 30.0)
    assert policy.chance_within(paused, 1.0) < policy.chance_within(paused, 30.0) <= 1.0
    policy.advance(now_s + 4 * 3600)
    assert policy.chance_within(over, 30.0) < 0.05
