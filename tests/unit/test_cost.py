"""Formulas and the split: against plain sums, and properties that must hold for any numbers."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radiximp import cost
from radiximp.cost import formulas, specs
from radiximp.cost.breakeven import Setup
from radiximp.cost.predict import TIE_S, CachedState, PrefillModel, Transfer, best_split, split_seconds

DENSE, HYBRID = specs.MODELS
A100 = specs.find(specs.GPUS, "a100")
GIB = formulas.GIB_BYTES


def setup_of(model=DENSE, gpu=A100, num_gpus=2, mfu=0.4, bw_util=0.7, **more):
    return Setup(model, gpu, num_gpus, mfu, bw_util, **more)


def k(tokens):
    return None if tokens is None else tokens / 1024


def test_the_package_imports_nothing_of_the_others_but_config():
    for path in Path(cost.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("radiximp"):
                assert node.module.split(".")[1:2] in (["cost"], ["config"]), f"{path.name}: {node.module}"


# ---- formulas ----


def test_prefill_is_the_sources_formula_written_out():
    s, n, layers, n_q, d = 10_000, 14.0e9, 40, 40, 128
    expected_s = (2 * s * n + 4 * s**2 * n_q * d * layers) / (0.4 * 2 * 312e12)
    assert setup_of().prefill.seconds(s) == pytest.approx(expected_s, rel=1e-12)


def test_fetch_is_bytes_over_what_the_link_reaches():
    setup = setup_of()
    num_bytes = setup.state.num_bytes(10_000)
    assert num_bytes == 10_000 * 2 * 8 * 128 * 40 * 2
    assert setup.transfer(specs.Tier("x", 10)).seconds(num_bytes) == pytest.approx(num_bytes / (0.7 * 10e9))
    assert setup_of(kv_bytes_per_element=1).state.num_bytes(10_000) == num_bytes / 2


def test_latency_and_queue_come_before_the_bytes_and_only_where_there_are_any():
    transfer = Transfer(1e9, latency_s=0.25, queue_s=1.5)
    assert transfer.seconds(2e9) == 3.75
    assert transfer.seconds(0) == 0
    np.testing.assert_array_equal(transfer.seconds(np.array([0.0, 1e9])), [0, 2.75])


def test_a_suffix_attends_over_the_fetched_prefix():
    prefill = PrefillModel(s_per_token=1e-3, s_per_pair=1e-6, overhead_s=0.5)
    assert prefill.seconds(100, 900) == pytest.approx(100 * 1e-3 + 100 * 1000 * 1e-6 + 0.5)
    assert prefill.seconds(0, 900) == 0


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_causal_pairs_of_two_parts_are_those_of_the_whole(prefix, one, other):
    def pairs(new, before):
        return formulas.attention_pairs(new, before, is_causal=True)

    assert pairs(one, prefix) + pairs(other, prefix + one) == pytest.approx(pairs(one + other, prefix))


@pytest.mark.parametrize("load_s, compute_s", [(8.0, 4.0), (4.0, 8.0), (0.0, 8.0), (8.0, 0.0), (8.0, 8.0)])
def test_the_pipeline_is_what_stepping_through_the_layers_gives(load_s, compute_s):
    num_layers, wait_s = 4, 0.5
    loaded_s, computed_s = wait_s, wait_s
    for _ in range(num_layers):
        loaded_s += load_s / num_layers
        computed_s = max(computed_s, loaded_s) + compute_s / num_layers
    assert formulas.pipeline_s(wait_s, load_s, compute_s, num_layers) == pytest.approx(computed_s)


def test_linear_state_of_the_hybrid_model():
    # 48 layers: 48 heads of 128 x 128 in FP32, and 3 inputs of 2 x 2048 + 6144 channels in BF16.
    assert HYBRID.linear_state_bytes == 48 * (48 * 128 * 128 * 4 + 10240 * 3 * 2)
    with_state = setup_of(HYBRID, has_linear_state=True)
    assert with_state.state.num_bytes(0) == 0
    assert with_state.state.num_bytes(1) == HYBRID.linear_state_bytes + 65536
    remote = specs.Tier("remote", 0.35)
    assert with_state.crossing_tokens(remote) > setup_of(HYBRID).crossing_tokens(remote)


# ---- what the source says of sizes (section 6); the crossings are in test_breakeven_command.py ----


@pytest.mark.parametrize(
    "model, gib_per_10k_tokens, tokens_in_16_gib", [(DENSE, 1.526, 104_858), (HYBRID, 0.610, 262_144)]
)
def test_kv_growth_and_16_gib(model, gib_per_10k_tokens, tokens_in_16_gib):
    setup = setup_of(model)
    assert setup.state.num_bytes(10_000) / GIB == pytest.approx(gib_per_10k_tokens, abs=0.0005)
    # 104,857.6 tokens of the dense model: the source rounds, we count those that fit.
    assert setup.capacity_tokens(16 * GIB) == pytest.approx(tokens_in_16_gib, abs=1)


@pytest.mark.parametrize(
    "model, context, measured_s, implied_mfu, implied_causal_mfu",
    [(DENSE, 40_960, 5.130, 0.788, 0.573), (HYBRID, 262_144, 103.607, 0.637, 0.428)],
)
def test_measured_prefills_of_the_source_fit_neither_of_its_mfus(
    model, context, measured_s, implied_mfu, implied_causal_mfu
):
    """Section 10 measures TTFT; the formula meets it at an MFU that is neither 0.4 nor 0.9. A documented difference."""
    full = setup_of(model, mfu=1.0).prefill.seconds(context)
    causal = setup_of(model, mfu=1.0, is_causal=True).prefill.seconds(context)
    assert full / measured_s == pytest.approx(implied_mfu, abs=0.001)
    assert causal / measured_s == pytest.approx(implied_causal_mfu, abs=0.001)


@pytest.mark.parametrize("model, measured_gib_per_10k, ratio", [(DENSE, 4.681, 3.07), (HYBRID, 1.638, 2.68)])
def test_measured_memory_slopes_of_the_source_are_not_kv_growth(model, measured_gib_per_10k, ratio):
    """Section 10's slopes of GPU memory are three times the KV and follow from no formula. A documented difference."""
    kv_gib = setup_of(model).state.num_bytes(10_000) / GIB
    assert measured_gib_per_10k / kv_gib == pytest.approx(ratio, abs=0.01)


# ---- crossing ----

shares = st.floats(0.05, 1)
gbps = st.floats(0.001, 10_000)
models = st.sampled_from(specs.MODELS)
latencies_s = st.one_of(st.just(0.0), st.floats(1e-6, 100))
setups = st.builds(
    Setup, models, st.sampled_from(specs.GPUS), st.integers(1, 8), shares, shares,
    st.sampled_from([1, 2]), latencies_s, st.booleans(), st.booleans(),
)  # fmt: skip


@given(setups, gbps)
def test_crossing_is_where_both_take_equally_long(setup, gbps):
    tier = specs.Tier("x", gbps)
    crossing = setup.crossing_tokens(tier)

    def gain_s(tokens):
        return setup.prefill.seconds(tokens) - setup.transfer(tier).seconds(setup.state.num_bytes(tokens))

    if crossing is None:
        assert gain_s(1.0) >= 0 and gain_s(1e6) > 0
        return
    assert gain_s(crossing) == pytest.approx(0, abs=1e-6 * setup.prefill.seconds(crossing))
    assert gain_s(crossing * 1.01) > 0
    assert gain_s(crossing * 0.99) < 0


@given(setups, gbps)
def test_min_bandwidth_is_the_inverse_of_crossing(setup, gbps):
    crossing = setup.crossing_tokens(specs.Tier("x", gbps))
    if crossing is not None:
        assert setup.min_bandwidth_gbps(crossing) == pytest.approx(gbps, rel=1e-6)


def crossing_or_0(setup, gbps):
    return setup.crossing_tokens(specs.Tier("x", gbps)) or 0.0


@given(setups, gbps, st.floats(1, 100))
def test_more_bandwidth_crosses_no_later(setup, gbps, factor):
    assert crossing_or_0(setup, gbps * factor) <= crossing_or_0(setup, gbps) * (1 + 1e-9)


@given(setups, gbps, shares)
def test_higher_mfu_crosses_no_earlier(setup, gbps, mfu):
    low, high = (dataclasses.replace(setup, mfu=value) for value in sorted((mfu, setup.mfu)))
    assert crossing_or_0(high, gbps) >= crossing_or_0(low, gbps) * (1 - 1e-9)


@given(setups, gbps, st.integers(1, 64), st.floats(0, 10))
def test_more_gpus_and_more_latency_cross_no_earlier(setup, gbps, more_gpus, more_s):
    bigger = dataclasses.replace(setup, num_gpus=setup.num_gpus + more_gpus)
    later = dataclasses.replace(setup, latency_s=setup.latency_s + more_s)
    for other in (bigger, later):
        assert crossing_or_0(other, gbps) >= crossing_or_0(setup, gbps) * (1 - 1e-9)


@given(setups, gbps)
def test_fp8_kv_crosses_no_later_and_needs_no_more_bandwidth(setup, gbps):
    one, two = (dataclasses.replace(setup, kv_bytes_per_element=size) for size in (1, 2))
    assert crossing_or_0(one, gbps) <= crossing_or_0(two, gbps) * (1 + 1e-9)
    assert one.hbm_capacity_tokens >= two.hbm_capacity_tokens


def test_no_bandwidth_makes_up_for_a_latency_beyond_the_prefill():
    setup = setup_of(latency_s=10)
    assert setup.min_bandwidth_gbps(1000) is None
    assert setup.min_bandwidth_gbps(100_000) > 0


@given(setups, gbps, st.booleans())
def test_counting_attention_at_half_doubles_a_crossing_without_waits(setup, gbps, _):
    setup = dataclasses.replace(setup, latency_s=0.0, has_linear_state=False)
    full, causal = (dataclasses.replace(setup, is_causal=is_causal) for is_causal in (False, True))
    assert crossing_or_0(causal, gbps) == pytest.approx(2 * crossing_or_0(full, gbps))


# ---- best_split ----

prefills = st.builds(
    PrefillModel, st.floats(1e-7, 1e-3), st.floats(0, 1e-7), st.booleans(), st.sampled_from([0.0, 0.01])
)
transfers = st.builds(Transfer, st.floats(1e6, 1e12), st.sampled_from([0.0, 1e-3, 1.0]), st.floats(0, 1))
states = st.builds(CachedState, st.floats(1e3, 1e6), st.sampled_from([0.0, 1e8]), st.integers(1, 64))
pages = st.sampled_from([1, 16, 64])
counts = st.tuples(st.integers(0, 40), st.integers(0, 3000), pages)


def split_of(prefill, transfer, state, counts, is_overlapped):
    num_pages, num_suffix, page_tokens = counts
    return best_split(
        prefill, transfer, state, num_pages * page_tokens, num_suffix, page_tokens, is_overlapped
    )


def brute_force(prefill, transfer, state, num_host, num_suffix, page_tokens, is_overlapped):
    """Each split in plain Python, its layers stepped through."""
    found = []
    for fetched in range(0, num_host + 1, page_tokens):
        new = num_host - fetched + num_suffix
        pairs = new * fetched + new * new * (0.5 if prefill.is_causal else 1)
        compute_s = new * prefill.s_per_token + pairs * prefill.s_per_pair
        compute_s += prefill.overhead_s if new else 0
        load_s, now_s = 0.0, 0.0
        if fetched:
            load_s = (fetched * state.bytes_per_token + state.constant_bytes) / transfer.bandwidth_bytes_per_s
            now_s = transfer.latency_s + transfer.queue_s
        if is_overlapped:
            loaded_s = now_s
            for _ in range(state.num_layers):
                loaded_s += load_s / state.num_layers
                now_s = max(now_s, loaded_s) + compute_s / state.num_layers
        else:
            now_s += load_s + compute_s
        found.append((now_s, fetched))
    soonest_s = min(found)[0]
    return soonest_s, min(fetched for seconds, fetched in found if seconds <= soonest_s + TIE_S)


@given(prefills, transfers, states, counts, st.booleans())
def test_best_split_is_the_best_of_all(prefill, transfer, state, counts, is_overlapped):
    found = split_of(prefill, transfer, state, counts, is_overlapped)
    num_pages, num_suffix, page_tokens = counts
    num_host = num_pages * page_tokens
    soonest_s, fetched = brute_force(
        prefill, transfer, state, num_host, num_suffix, page_tokens, is_overlapped
    )
    assert found.seconds == pytest.approx(soonest_s, rel=1e-9, abs=2 * TIE_S)
    assert found.num_fetched_tokens + found.num_recomputed_tokens == num_host
    if found.num_fetched_tokens != fetched:  # rounding at the edge of a tie
        both_s = [
            split_seconds(prefill, transfer, state, tokens, num_host + num_suffix, is_overlapped)
            for tokens in (found.num_fetched_tokens, fetched)
        ]
        assert max(both_s) - soonest_s == pytest.approx(TIE_S, rel=1e-3)


@given(prefills, transfers, states, counts, st.booleans(), st.floats(1, 1000))
def test_a_faster_link_never_fetches_less(prefill, transfer, state, counts, is_overlapped, factor):
    faster = dataclasses.replace(transfer, bandwidth_bytes_per_s=transfer.bandwidth_bytes_per_s * factor)
    slow, fast = (split_of(prefill, link, state, counts, is_overlapped) for link in (transfer, faster))
    assert fast.num_fetched_tokens >= slow.num_fetched_tokens
    assert fast.seconds <= slow.seconds + 2 * TIE_S


@given(prefills, transfers, states, counts, st.booleans(), st.floats(1, 100), st.floats(1, 100))
def test_a_slower_prefill_never_fetches_less(prefill, transfer, state, counts, is_overlapped, one, other):
    slower = dataclasses.replace(
        prefill, s_per_token=prefill.s_per_token * one, s_per_pair=prefill.s_per_pair * other
    )
    quick, slow = (split_of(model, transfer, state, counts, is_overlapped) for model in (prefill, slower))
    assert slow.num_fetched_tokens >= quick.num_fetched_tokens


@given(prefills, transfers, states, counts, st.floats(0, 10))
def test_a_longer_queue_never_fetches_more(prefill, transfer, state, counts, more_s):
    longer = dataclasses.replace(transfer, queue_s=transfer.queue_s + more_s)
    now, later = (split_of(prefill, link, state, counts, True) for link in (transfer, longer))
    assert later.num_fetched_tokens <= now.num_fetched_tokens


@given(prefills, transfers, states, counts)
def test_without_overlap_it_is_all_or_nothing(prefill, transfer, state, counts):
    found = split_of(prefill, transfer, state, counts, is_overlapped=False)
    best_s = found.seconds
    ends_s = [
        split_seconds(prefill, transfer, state, fetched, counts[0] * counts[2] + counts[1], False)
        for fetched in (0, counts[0] * counts[2])
    ]
    assert min(ends_s) <= best_s + 2 * TIE_S + 1e-9 * best_s


def test_the_three_choices_and_a_tie():
    prefill, state = PrefillModel(1e-3, 0.0), CachedState(bytes_per_token=1e6, num_layers=10)

    def choose(bytes_per_s, is_overlapped=True):
        return best_split(prefill, Transfer(bytes_per_s), state, 1000, 0, 100, is_overlapped)

    assert choose(1e12).choice == "fetch all" and choose(1e12).num_fetched_tokens == 1000
    assert choose(1e7).choice == "recompute all" and choose(1e7).seconds == pytest.approx(1.0)
    middle = choose(1e9)
    assert (middle.choice, middle.num_fetched_tokens) == ("fetch part", 500)
    # Layer by layer: 0.05 s to load the first, nine times 0.05 s, 0.05 s to compute the last.
    assert middle.seconds == pytest.approx(0.55)
    # One after the other, every split takes the same second: none is fetched, however each sum is rounded.
    assert choose(1e9, is_overlapped=False).num_fetched_tokens == 0
    for token_s in (1 / 3000, 1e-3 / 7, 1e-3 / 11):
        link = Transfer(state.bytes_per_token / token_s)
        found = best_split(PrefillModel(token_s, 0.0), link, state, 1000, 0, is_overlapped=False)
        assert found.num_fetched_tokens == 0


def test_nothing_cached_and_a_hybrid_prefix_that_cannot_be_cut():
    prefill, state = PrefillModel(1e-3, 0.0), CachedState(1e6, num_layers=10)
    empty = best_split(prefill, Transfer(1e9), state, 0, 50)
    assert (empty.choice, empty.seconds) == ("recompute all", pytest.approx(0.05))
    whole = best_split(prefill, Transfer(1.5e9), state, 1000, 0, page_tokens=1000)
    assert (whole.choice, whole.seconds) == ("fetch all", pytest.approx(1 / 1.5))


@pytest.mark.parametrize(
    "counts, text",
    [
        ((100, 0, 64), "expected a host prefix of whole pages, got num_host_tokens=100, page_tokens=64"),
        ((-64, 0, 64), "counts of at least 0"),
        ((64, -1, 64), "num_suffix_tokens=-1"),
        ((64, 0, 0), "pages of at least 1 token"),
    ],
)
def test_counts_that_are_none(counts, text):
    with pytest.raises(ValueError, match=text):
        best_split(PrefillModel(1, 1), Transfer(1), CachedState(1), *counts)


def test_coefficients_that_are_none():
    with pytest.raises(ValueError, match="expected seconds of at least 0, got .*s_per_token=-1"):
        PrefillModel(-1, 0)
    for values in ((0,), (1, -1), (1, 0, -1), (float("nan"),)):
        with pytest.raises(ValueError, match="expected a bandwidth above 0 and waits of at least 0"):
            Transfer(*values)
