"""Caches of pages against small cases done by hand, and the statistics that judge them."""

from __future__ import annotations

import numpy as np
import pytest

from eval.block_level import page_caches, verdicts
from eval.block_level.hotspots import chance, jaccards
from eval.block_level.observed import page_densities
from eval.block_level.page_caches import BELADY, BUDGETS, POLICIES, Rows, replayed
from eval.bootstrap import interval_of, shown


def rows_of(truth: np.ndarray, num_turns: int = 2) -> Rows:
    """Turns of equal length; the first row of each is its start."""
    num_rows, num_pages = truth.shape
    length = num_rows // num_turns
    turn = np.arange(num_rows) // length
    is_start = np.arange(num_rows) % length == 0
    return Rows(
        is_start, turn, np.full(num_rows, num_pages), {"softmax": truth}, truth, np.zeros(num_pages, int)
    )


def random_rows(seed: int, num_rows: int = 60, num_pages: int = 120) -> Rows:
    rng = np.random.default_rng(seed)
    return rows_of(rng.exponential(size=num_pages) * rng.exponential(size=(num_rows, num_pages)), 3)


@pytest.mark.parametrize("seed", range(3))
def test_no_policy_hits_more_than_belady(seed):
    for hits in replayed(random_rows(seed), POLICIES):
        best = hits.found["belady"]
        for name, found in hits.found.items():
            assert (found.sum(0) <= best.sum(0)).all(), name


@pytest.mark.parametrize("seed", range(3))
def test_more_room_never_hurts_a_ranking_and_nothing_hits_more_than_is_wanted(seed):
    steps, turns = replayed(random_rows(seed), POLICIES)
    for hits in (steps, turns):
        for found in hits.found.values():
            assert (found.sum(0) <= hits.wanted.sum()).all()
    for found in turns.found.values():
        assert (np.diff(found.sum(0)) >= 0).all()


def test_one_that_wants_the_same_pages_always_misses_nothing_under_any_policy_but_at_first():
    truth = np.tile(np.arange(100.0), (20, 1))
    steps, _ = replayed(rows_of(truth), POLICIES)
    wanted = steps.wanted.sum()
    for name, found in steps.found.items():
        assert found.sum(0)[-1] == wanted, name  # the budget holds what was written last, too


def test_lru_of_a_cycle_larger_than_the_cache_hits_nothing_and_belady_something():
    pages = 100
    truth = np.zeros((41, pages))
    for row in range(41):
        truth[row, [(5 * row + i) % pages for i in range(5)]] = 1
    steps, _ = replayed(rows_of(truth, 1), (page_caches.BASELINES[0], BELADY))
    budget = BUDGETS.index(0.1)
    # 20 rows fill the cache with what it has written; from then on the cycle of 20 never fits into 10 pages.
    assert steps.found["lru"].sum(0)[budget] <= 10
    assert steps.found["belady"].sum(0)[budget] > steps.found["lru"].sum(0)[budget]


def test_next_uses():
    wanted = np.array([[1, 0], [0, 1], [1, 1]], bool)
    assert page_caches.next_uses(wanted).tolist() == [[2, 1], [2, 2], [3, 3]]


def test_densities_of_pages_are_relative_to_the_average_counted_token():
    mass = np.zeros((1, 48))
    mass[0, :16], mass[0, 16:32], mass[0, 32:] = 1.0, 3.0, 100.0
    counted = np.ones(48, bool)
    counted[:8] = False  # half of the first page is sinks
    found = page_densities(mass, counted, np.array([2]))
    average = (8 * 1 + 16 * 3) / 24
    np.testing.assert_allclose(found[0, :2], [1 / average, 3 / average])
    assert np.isnan(found[0, 2])  # not seen


def test_a_query_is_not_compared_with_itself():
    same = np.tile(np.arange(50.0), (5, 1))
    assert jaccards(same).tolist() == [1.0] * 5
    apart = np.zeros((3, 60))
    for query in range(3):
        apart[query, 10 * query : 10 * query + 6] = 1
    assert jaccards(apart).tolist() == [0.0] * 3
    assert chance(100) == pytest.approx(1 / 19)


def test_an_interval_of_a_ratio_holds_the_ratio_of_the_sums():
    groups = [[3, 4], [5, 10], [2, 2], [8, 9]]
    value, low, high = interval_of(groups, lambda sums: sums[0] / sums[1])
    assert value == pytest.approx(18 / 25) and low <= value <= high
    assert shown([0.123, 0.1, 0.2], 1, 100) == "12.3 (10.0 … 20.0)"


def test_verdicts_are_by_the_interval():
    assert verdicts.judged([0.3, 0.25, 0.4], 0.2) == "supported"
    assert verdicts.judged([0.1, 0.0, 0.15], 0.2) == "not supported"
    assert verdicts.judged([0.2, 0.1, 0.3], 0.2) == "unclear"


def talk_row(number: int, ours: int, lru: int) -> dict:
    """A conversation on which every policy but lru hits `ours`."""
    names = [p.name for p in (*page_caches.POLICIES, *page_caches.POST_HOC)]
    found = {name: [[lru if name == "lru" else ours] * len(BUDGETS)] * 3 for name in names}
    level = {verdicts.MEAN: {"wanted": [100] * 3, "found": found}}
    return {"kind": "talk", "group": "tools", "number": number, "steps": 10, "step": level, "turn": level}


def test_settings_come_from_the_even_conversations_and_figures_from_the_odd_ones():
    rows = [talk_row(0, 60, 50), talk_row(1, 90, 60), talk_row(2, 60, 50), talk_row(3, 90, 60)]
    summary, lines = verdicts.concluded(rows)
    assert summary["H1 step"]["gain"][0] == pytest.approx([0.5, 0.5, 0.5])
    assert any(
        line.startswith("H1, at every decode step: importance") and line.endswith(": supported")
        for line in lines
    )
    assert summary["H4 turn"]["quest"]["ratio"][0] == pytest.approx(1.0)
    assert any("H3" in line and "not testable here" in line for line in lines)
