"""What a feature tells of reuse, on evidence whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from radiximp.policy.information_gain import information_gain_bits

GROUPS = ["a", "a"]
IDLE_S = np.full((2, 4), 1e6)


def test_a_feature_that_separates_reuse_gains_what_it_says():
    # Three in four reuses are in the half with 1.5 times the group's hazard, one in four in that with half of it.
    reuse = np.array([[30_000.0] * 4, [10_000.0] * 4])
    bits = 0.75 * np.log2(1.5) + 0.25 * np.log2(0.5)
    assert information_gain_bits(GROUPS, reuse, IDLE_S, 1.0) == pytest.approx(bits, abs=1e-3)


def test_chance_is_no_gain():
    rng = np.random.default_rng(0)
    gains = [
        information_gain_bits(["a"] * 8, rng.poisson(10, (8, 20)).astype(float), np.ones((8, 20)), 1.0)
        for _ in range(20)
    ]
    # Uncorrected it would be 7 x 20 degrees / (2 ln 2 x 1,600 reuses) = 0.063.
    assert np.mean(gains) < 0.01


def test_a_class_alone_in_its_group_gains_nothing():
    reuse = np.array([[30_000.0] * 4, [10_000.0] * 4])
    assert information_gain_bits(["a", "b"], reuse, IDLE_S, 1.0) == 0.0


@pytest.mark.parametrize("num_reuses", [0.0, 99.0])
def test_without_evidence_there_is_no_number(num_reuses):
    assert information_gain_bits(["a"], np.array([[num_reuses]]), np.ones((1, 1)), 1.0) is None
    assert information_gain_bits([], np.zeros((0, 4)), np.zeros((0, 4)), 1.0) is None
