"""The what-if curve at a sampling rate of 1 % against real replays of lru: `python -m eval.what_if` on one trace and one tier."""

from __future__ import annotations

from statistics import fmean

import pytest

from radiximp.config import PolicyConfig
from radiximp.policy.miss_ratio import MissRatioCurve, unit_hashes, unit_tokens_of
from radiximp.replay.readers import open_trace
from radiximp.replay.run import replay_one

# 1 x: 2 % of the 182,790 distinct pages.
BASE_PAGES = 3656
NUM_REQUESTS = 12_031


def test_the_curve_is_within_two_points_of_replays(public_trace):
    trace = open_trace(public_trace("mooncake_conversation.jsonl.gz"))
    unit_tokens = unit_tokens_of(trace.page_tokens)
    curve = MissRatioCurve(unit_tokens)
    for request in trace.requests():
        hashes = unit_hashes(request.page_ids, 1, trace.page_tokens // unit_tokens)
        curve.use(hashes, request.num_tokens)
    assert curve.rate == 0.01 and curve.num_samples < 65_536
    errors = []
    for scale in (0.5, 1, 2, 4):
        num_pages = int(scale * BASE_PAGES)
        row = replay_one(trace, "lru", PolicyConfig(), num_pages, num_requests=NUM_REQUESTS)
        estimate = curve.hit_rate(num_pages * trace.page_tokens)
        errors.append(abs(estimate - row.hit_rate))
        assert curve.standard_error(num_pages * trace.page_tokens) < 0.01
    assert fmean(errors) < 0.02 and max(errors) < 0.02, errors
    assert curve.hit_rate(1e12) == pytest.approx(0.3736, abs=0.01)  # a cache without limit
