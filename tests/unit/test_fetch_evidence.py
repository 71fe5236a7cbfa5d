"""What `eval.fetch_or_recompute` makes of times to first token."""

from __future__ import annotations

import numpy as np
import pytest

from eval.fetch_or_recompute import POLICIES, over_better, p50_of


def row(**seconds) -> dict:
    return {"policies": {name: {"ttft_s": seconds[name.replace(" ", "_")]} for name in POLICIES}}


def test_p50_of_two_kinds_does_not_hang_on_the_two_requests_in_the_middle():
    quick, slow = np.linspace(0.4, 0.6, 40), np.linspace(1.2, 1.4, 40)
    late = np.where(quick == quick.max(), 0.9, quick)
    plain = [float(np.median(np.concatenate([values, slow]))) for values in (quick, late)]
    ours = [p50_of(np.concatenate([values, slow])) for values in (quick, late)]
    assert plain[1] / plain[0] == pytest.approx(1.167, abs=0.001)
    assert ours[0] == pytest.approx(0.9) and 1 < ours[1] / ours[0] < 1.04


def test_the_better_fixed_policy_is_the_measure_and_a_constant_ratio_has_no_spread():
    rng = np.random.default_rng(0)
    fetch = np.ravel(np.column_stack([rng.normal(1.0, 0.1, 40), rng.normal(0.5, 0.1, 40)]))
    found = over_better(
        row(always_fetch=fetch, always_recompute=2 * fetch, by_cost=0.8 * fetch),
    )
    assert found == pytest.approx([0.8, 0.8, 0.8])
