"""Calibration from samples: exact where they are, robust, recent, and quick to follow a change of speed."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radiximp.cost.calibration import PrefillBatch, PrefillCalibration, TransferCalibration

SIZES = itertools.cycle([64, 512, 128, 2048, 256, 1024])

latencies = st.floats(1e-5, 0.5)
rates = st.floats(1e-7, 1e-2)
# Each size again and again: three of one that is new, one after the other, may pass for a change of speed.
sizes = st.tuples(*[st.permutations([16, 128, 1024, 4096])] * 4).map(
    lambda rounds: [*itertools.chain(*rounds)]
)


def learned(samples) -> TransferCalibration:
    calibration = TransferCalibration()
    for num_tokens, seconds in samples:
        calibration.note(num_tokens, seconds)
    return calibration


def predicted(calibration: TransferCalibration, num_tokens: int) -> float:
    return calibration.fit.seconds((1.0, num_tokens))


def test_latency_and_rate_of_exact_samples_are_found():
    calibration = learned((n, 0.02 + 1e-5 * n) for n in itertools.islice(SIZES, 12))
    assert calibration.latency_s == pytest.approx(0.02, rel=0.02)
    assert calibration.s_per_token == pytest.approx(1e-5, rel=0.02)


@given(latencies, rates, sizes)
def test_what_was_measured_is_predicted(latency_s, s_per_token, tokens):
    calibration = learned((n, latency_s + s_per_token * n) for n in tokens)
    for n in tokens:
        assert predicted(calibration, n) == pytest.approx(latency_s + s_per_token * n, rel=0.01)


@pytest.mark.parametrize("factor", [40, 1 / 40])
def test_a_change_by_40_is_followed_within_5_samples(factor):
    calibration = learned((n, 0.001 + 1e-5 * n) for n in itertools.islice(SIZES, 16))
    for n in (512, 1024, 256, 2048, 512):
        calibration.note(n, factor * (0.001 + 1e-5 * n))
    for n in (256, 1024, 4096):
        assert predicted(calibration, n) == pytest.approx(factor * (0.001 + 1e-5 * n), rel=0.1)


def test_a_change_is_followed_after_samples_of_many_sizes():
    """The newest stay together where every size was seen about as often."""
    calibration = learned((n, 0.02 + 1e-5 * n) for n in [2**k for k in range(4, 12)] * 2)
    for _ in range(5):
        calibration.note(8192, 40 * (0.02 + 1e-5 * 8192))
    assert predicted(calibration, 8192) == pytest.approx(40 * (0.02 + 1e-5 * 8192), rel=0.1)


@given(
    latencies, rates, st.sampled_from([40.0, 1 / 40]), st.lists(st.integers(16, 8192), min_size=5, max_size=5)
)
def test_any_change_by_40_is_followed_within_5_samples(latency_s, s_per_token, factor, newer):
    calibration = learned((n, latency_s + s_per_token * n) for n in itertools.islice(SIZES, 16))
    for n in newer:
        calibration.note(n, factor * (latency_s + s_per_token * n))
    for n in newer:
        assert predicted(calibration, n) == pytest.approx(factor * (latency_s + s_per_token * n), rel=0.3)


@given(latencies, rates, sizes, st.floats(1.6, 1000.0), st.integers(0, 5))
def test_one_slow_transfer_among_steady_ones_changes_little(latency_s, s_per_token, tokens, factor, ago):
    samples = [(n, latency_s + s_per_token * n) for n in tokens]
    n, seconds = samples[-1 - ago]
    samples[-1 - ago] = (n, factor * seconds)
    calibration = learned(samples)
    middle = sorted(tokens)[len(tokens) // 2]
    assert predicted(calibration, middle) == pytest.approx(latency_s + s_per_token * middle, rel=0.35)


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(1e-6, 1e3)), min_size=1, max_size=40))
def test_equal_samples_give_equal_bits_and_costs_are_never_negative(samples):
    first, second = learned(samples), learned(samples)
    assert first.fit.coefficients == second.fit.coefficients
    assert min(first.fit.coefficients) >= 0
    assert predicted(first, 100) <= predicted(first, 200)


def test_prefill_rate_falls_with_depth():
    calibration = PrefillCalibration()
    for new, depth in itertools.product((64, 512, 2048), (0, 1024, 4096)):
        batch = PrefillBatch.of([(new, depth)])
        calibration.note(batch, 0.01 + 1e-4 * new + 2e-8 * batch.num_pairs)
    for new, depth in ((128, 0), (128, 8192), (1024, 2048)):
        pairs = new * (depth + new / 2)
        expected = 0.01 + 1e-4 * new + 2e-8 * pairs
        assert calibration.model(depth).seconds(new) == pytest.approx(expected, rel=0.05)


def test_others_in_the_batch_are_waited_for():
    calibration = PrefillCalibration()
    for new in (64, 512, 2048, 256):
        calibration.note(PrefillBatch.of([(new, 0)]), 1e-4 * new)
    alone = calibration.model().seconds(128)
    assert calibration.model(0, PrefillBatch.of([(1000, 0)])).seconds(128) - alone == pytest.approx(
        0.1, rel=0.05
    )


def test_predictions_are_judged_before_the_sample_is_learned():
    calibration = learned([(100, 1.0), (100, 2.0)])
    assert list(calibration.fit.recent) == [(pytest.approx(1.0), 2.0)]
    assert calibration.fit.median_error == pytest.approx(0.5)


@pytest.mark.parametrize("num_tokens, seconds", [(0, 1.0), (10, 0.0), (10, float("nan")), (10, float("inf"))])
def test_a_sample_that_cannot_be_is_refused(num_tokens, seconds):
    with pytest.raises(ValueError, match="above 0"):
        TransferCalibration().note(num_tokens, seconds)
