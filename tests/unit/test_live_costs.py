"""The choice between fetching and computing, from what was measured."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radiximp.cost.calibration import PrefillBatch
from radiximp.cost.live import HOST, STORAGE, LiveCosts
from radiximp.cost.predict import CachedState, split_seconds

STATE = CachedState(bytes_per_token=1000.0, num_layers=30)


def measured(
    latency_s: float, s_per_token: float, prefill_tokens_per_s: float, is_overlapped=False
) -> LiveCosts:
    """Costs of a server whose samples follow these numbers, at a page of 16 tokens."""
    costs = LiveCosts(STATE, page_tokens=16, is_overlapped=is_overlapped)
    for num_tokens in (64, 256, 1024, 4096) * 3:
        costs.note_transfer(HOST, num_tokens, latency_s + s_per_token * num_tokens)
        costs.prefill.note(PrefillBatch.of([(num_tokens, 0)]), num_tokens / prefill_tokens_per_s)
    return costs


@pytest.mark.parametrize(
    "prefill_tokens_per_s, host_tokens, fetched",
    [(5000, 96, 0), (5000, 112, 112), (2500, 48, 0), (2500, 64, 64), (10000, 208, 0), (10000, 224, 224)],
)
def test_case_14_and_its_mirrors(prefill_tokens_per_s, host_tokens, fetched):
    costs = measured(0.020, 1e-5, prefill_tokens_per_s)
    assert costs.best(0, host_tokens, 1).num_fetched_tokens == fetched


@given(
    st.floats(1e-4, 0.2),
    st.floats(1e-7, 1e-3),
    st.floats(1e-5, 1e-2),
    st.integers(1, 256),
    st.integers(1, 4000),
)
def test_the_crossing_is_where_the_formula_says(latency_s, s_per_token, prefill_s_per_token, pages, suffix):
    costs = measured(latency_s, s_per_token, 1 / prefill_s_per_token)
    host_tokens = 16 * pages
    fetch_s, compute_s = latency_s + s_per_token * host_tokens, prefill_s_per_token * host_tokens
    if math.isclose(fetch_s, compute_s, rel_tol=0.15):
        return  # within what the estimates of these samples are exact to
    fetched = costs.best(0, host_tokens, suffix).num_fetched_tokens
    assert fetched == (host_tokens if fetch_s < compute_s else 0)


def test_nothing_is_decided_before_both_costs_were_measured():
    costs = LiveCosts(STATE, 16, is_overlapped=False)
    assert costs.best(0, 160, 1) is None
    costs.note_transfer(HOST, 100, 0.01)
    assert costs.best(0, 160, 1) is None
    costs.prefill.note(PrefillBatch.of([(100, 0)]), 0.01)
    assert costs.best(0, 160, 1) is not None


def test_a_deep_prompt_is_dearer_to_compute():
    costs = LiveCosts(STATE, 16, is_overlapped=False)
    for new, depth in ((64, 0), (512, 0), (512, 8192), (64, 8192), (2048, 4096)) * 3:
        batch = PrefillBatch.of([(new, depth)])
        costs.prefill.note(batch, 1e-5 * new + 1e-8 * batch.num_pairs)
        costs.note_transfer(HOST, 512, 0.020 + 1e-6 * 512)
    assert costs.best(0, 512, 16).num_fetched_tokens == 0
    assert costs.best(8192, 512, 16).num_fetched_tokens == 512


def test_a_transfer_in_flight_is_waited_for_and_a_shared_one_is_not_paid_twice():
    costs = measured(0.020, 1e-5, 5000)
    assert costs.best(0, 160, 1).num_fetched_tokens == 160
    assert costs.best(0, 160, 1, queue_s=0.1).num_fetched_tokens == 0
    assert costs.best(0, 32, 1).num_fetched_tokens == 0
    assert costs.best(0, 32, 1, shares_a_load=True).num_fetched_tokens == 32


@given(
    st.integers(1, 300),
    st.integers(1, 5000),
    st.integers(0, 4000),
    st.floats(1e-6, 1e-3),
    st.floats(1e-6, 1e-3),
)
def test_with_overlap_a_part_ends_on_the_grid_and_is_never_worse_than_all_or_nothing(
    pages, suffix, depth, s_per_token, prefill_s_per_token
):
    costs = measured(0.001, s_per_token, 1 / prefill_s_per_token, is_overlapped=True)
    depth, host_tokens = depth // 16 * 16, 16 * pages
    split = costs.best(depth, host_tokens, suffix)
    assert split.num_fetched_tokens + split.num_recomputed_tokens == host_tokens
    if split.choice == "fetch part":
        assert (depth + split.num_fetched_tokens) % 256 == 0 or split.num_fetched_tokens < 256
    prefill, transfer = costs.prefill.model(depth), costs.tiers[HOST].transfer(STATE.bytes_per_token)
    for num_tokens in (0, host_tokens):
        assert (
            split.seconds <= split_seconds(prefill, transfer, STATE, num_tokens, host_tokens + suffix) + 1e-8
        )


@pytest.mark.parametrize("latency_s", [0.1, 2.0])
def test_a_tier_that_was_too_slow_is_looked_at_again_for_at_most_2_percent(latency_s):
    costs = measured(latency_s, 1e-3, 5000)
    computed_s = 0.0
    while costs.best(0, 320, 1).num_fetched_tokens == 0:
        costs.note_declined(HOST, 0, 320)
        computed_s += 320 / 5000
        assert computed_s < 200
    assert costs.best(0, 320, 1).num_fetched_tokens == 16, "a page is all that this buys"
    costs.note_fetched(16, is_all=False, shares_a_load=False)
    assert costs.best(0, 320, 1).num_fetched_tokens == 0, "one request of a batch looks"
    page_s = latency_s + 16 * 1e-3 - 16 / 5000
    assert computed_s == pytest.approx(page_s / 0.02, rel=0.01, abs=320 / 5000)
    costs.note_transfer(HOST, 16, latency_s + 16 * 1e-3)
    assert costs.best(0, 320, 1).num_fetched_tokens == 0, "as slow as before"
    for _ in range(4):
        costs.note_transfer(HOST, 16, 1e-4)
    assert costs.best(0, 320, 1).num_fetched_tokens == 320


def test_what_was_always_fetched_is_computed_again_for_at_most_2_percent():
    costs = measured(1.0, 1e-4, 512)
    computed_s, fetch_s = 768 / 512, 1.0 + 768e-4
    num_fetched = 0
    while costs.best(0, 768, 16).num_fetched_tokens == 768:
        costs.note_fetched(768, is_all=True, shares_a_load=False)
        costs.note_declined(HOST, 0, 64)  # a prefix of another size tells nothing of this one
        num_fetched += 1
        assert num_fetched < 200
    assert num_fetched == pytest.approx((computed_s - fetch_s) / 0.02 / fetch_s, rel=0.01, abs=1)
    costs.note_declined(HOST, 0, 768)
    assert costs.best(0, 768, 16).num_fetched_tokens == 768, "as slow as before"
    for _ in range(3):
        costs.prefill.note(PrefillBatch.of([(784, 0)]), 0.784)
    assert costs.best(0, 768, 16).num_fetched_tokens == 0


@pytest.mark.parametrize("seed", range(10))
def test_many_noisy_small_batches_do_not_push_out_what_a_large_one_took(seed):
    rng = random.Random(seed)
    costs = LiveCosts(STATE, page_tokens=16, is_overlapped=False)
    large, *small = (PrefillBatch.of([shape]) for shape in ((784, 0), (256, 0), (16, 768)))

    def took_s(batch: PrefillBatch) -> float:
        return 0.1 + 1.2e-3 * batch.num_tokens + 2e-7 * batch.num_pairs

    for batch in (large, large):
        costs.prefill.note(batch, took_s(batch))
    for batch in small * 40:
        costs.prefill.note(batch, took_s(batch) * rng.uniform(0.8, 1.25))
    assert costs.prefill.model().seconds(784) == pytest.approx(took_s(large), rel=0.12)


def test_storage_is_asked_where_it_would_be_sooner():
    costs = measured(0.001, 1e-6, 5000)
    assert costs.is_storage_worth_it(0, 1024), "unknown: asked"
    for num_tokens in (256, 1024, 4096) * 3:
        costs.note_transfer(STORAGE, num_tokens, 0.5 + 1e-6 * num_tokens, queue_s=0.1)
    assert not costs.is_storage_worth_it(0, 1024)
    assert costs.is_storage_worth_it(0, 8192)
    for _ in range(200):
        costs.note_declined(STORAGE, 0, 1024)
    assert costs.is_storage_worth_it(0, 1024), "after 40 s of computing a look of half a second"
    costs.note_asked()
    assert not costs.is_storage_worth_it(0, 1024), "once, whether it has them or not"


def test_what_is_told_is_plain_and_complete():
    told = measured(0.020, 1e-5, 5000).describe()
    assert told["tiers"]["host"]["latency_s"] == pytest.approx(0.020, rel=0.02)
    assert told["tiers"]["host"]["gb_per_s"] == pytest.approx(1000 / 1e-5 / 1e9, rel=0.02)
    assert told["prefill"]["tokens_per_s"] == pytest.approx(5000, rel=0.02)
    assert told["tiers"]["host"]["median_error"] < 0.05
    assert told["tiers"]["storage"]["samples"] == 0
    assert told["tiers"]["storage"]["gb_per_s"] is None
