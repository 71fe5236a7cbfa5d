"""What a node remembers, the LRFU score over it, and the clock; no tree, no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from radiximp.config import PolicyConfig
from radiximp.importance.aggregate import DENSITY_STEP, ImportanceAggregate
from radiximp.policy.clock import ArrivalClock
from radiximp.policy.history import NodeHistory
from radiximp.policy.lrfu import ImportanceLRFU


@dataclass
class Leaf:
    history: NodeHistory
    last_access_time: float = 0
    id: int = 0


def used(policy: ImportanceLRFU, times_s, density: float | None = None) -> NodeHistory:
    history = NodeHistory(0.0, 0)
    for tick, time_s in enumerate(times_s):
        policy.record_uses([(history, 1)], time_s, tick)
    if density is not None:
        history.importance = ImportanceAggregate()
        history.importance.observe(density, 1, True, 8, 32)
    return history


times = st.lists(st.floats(0, 5000), min_size=1, max_size=8).map(sorted)
densities = st.one_of(st.none(), st.floats(0.1, 20))


@settings(max_examples=300)
@given(a=times, b=times, da=densities, db=densities, later=st.floats(0, 5000), half_life_s=st.floats(1, 1000))
def test_the_order_of_keys_is_the_order_of_scores_at_any_time(a, b, da, db, later, half_life_s):
    policy = ImportanceLRFU(PolicyConfig(half_life_s=half_life_s))
    x, y = used(policy, a, da), used(policy, b, db)
    now_s = max(a[-1], b[-1]) + later
    score_x, score_y = (
        max(history.density, 1 / 64) * history.weight * 2 ** (-(now_s - history.last_use_s) / half_life_s)
        for history in (x, y)
    )
    if min(score_x, score_y) > 1e-280 and not math.isclose(score_x, score_y, rel_tol=1e-9):
        assert (policy.key(Leaf(x)) < policy.key(Leaf(y))) == (score_x < score_y)


def test_without_importance_weight_density_changes_nothing():
    policy = ImportanceLRFU(PolicyConfig(importance_weight=0))
    assert policy.key(Leaf(used(policy, [1, 2], 9.0))) == policy.key(Leaf(used(policy, [1, 2])))


def test_half_life_zero_ranks_by_last_access_alone():
    policy = ImportanceLRFU(PolicyConfig(half_life_s=0))
    often, once = used(policy, range(50), 9.0), used(policy, [0])
    assert policy.key(Leaf(often, 7.0)) < policy.key(Leaf(once, 7.1))


def test_density_is_an_exponential_average_on_a_grid():
    aggregate = ImportanceAggregate()
    aggregate.observe(4.0, 10, True, half_life_queries=1, window_queries=4)
    aggregate.observe(0.0, 10, False, half_life_queries=1, window_queries=4)
    assert aggregate.density == 2.0
    assert aggregate.mass == 40.0
    aggregate.observe(1 / 3 + 1e-4, 10, False, half_life_queries=1, window_queries=4)
    assert aggregate.density % DENSITY_STEP == 0
    assert aggregate.top_share(4) == pytest.approx(1 / 3)


def test_noise_below_the_grid_gives_the_same_density():
    exact, noisy = ImportanceAggregate(), ImportanceAggregate()
    for density in (1.0, 3.5, 0.25):
        exact.observe(density, 8, True, 8, 32)
        noisy.observe(density * (1 + 1e-3), 8, True, 8, 32)
    assert exact.density == noisy.density


@given(head=st.integers(1, 99))
def test_a_split_shares_mass_and_copies_the_rest(head):
    history = used(ImportanceLRFU(PolicyConfig()), [1, 2, 3], 3.5)
    history.importance.mass = 350.0
    history.pins = (5.0, 9.0)
    first = history.split(head, 100)
    assert first.importance.mass + history.importance.mass == pytest.approx(350.0)
    assert first.importance.mass == pytest.approx(3.5 * head)
    for name in ("weight", "last_use_s", "num_queries", "pins", "density"):
        assert getattr(first, name) == getattr(history, name)


def test_sessions_are_counted_once():
    history = NodeHistory(0.0, 0)
    for number in range(20):
        for _ in range(5):
            history.add_session(number * 2654435761 >> 7)
    assert 14 <= history.num_sessions <= 26


def test_arrivals_move_the_clock_forwards_only():
    clock = ArrivalClock()
    assert [clock.step(), clock.step()] == [1.0, 2.0]
    clock.observe_arrival(1_700_000_000.0)
    assert clock.now_s() == 2.0
    clock.observe_arrival(1_700_000_010.5)
    clock.observe_arrival(1_700_000_003.0)
    assert clock.now_s() == clock.step() == 12.5


@pytest.mark.parametrize("wrong", [math.inf, math.nan, 1e18, -1e18])
@pytest.mark.parametrize("is_first", [True, False])
def test_one_wrong_stamp_neither_stops_nor_breaks_the_clock(wrong, is_first):
    clock = ArrivalClock()
    stamps = [wrong, 1_700_000_000.0] if is_first else [1_700_000_000.0, wrong]
    for stamp in stamps:
        clock.observe_arrival(stamp)
    before = clock.now_s()
    assert 0 <= before <= 3600
    for second in range(1, 201):
        clock.observe_arrival(1_700_000_000.0 + second)
    assert 198 <= clock.now_s() - before <= 200 + 3600
