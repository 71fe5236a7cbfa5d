"""Golden counts of the public traces: requests, prompt tokens, pages, distinct page ids."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest

from radiximp.replay.readers import open_trace, write_trace

WEKA = "weka_sessions_dev.jsonl.gz"
EVERYTHING_H = 1e6  # longer than any session: nothing is dropped
GOLDEN = {
    "mooncake_conversation.jsonl.gz": ({}, (12_031, 144_793_823, 288_500, 182_790)),
    WEKA: ({"hours": EVERYTHING_H}, (20_373, 2_403_444_808, 37_543_766, 1_317_219)),
    "lmcache_miniswe.jsonl.gz": ({}, (402, 2_418_842, 151_371, 9_619)),
    "tau_bench_airline_dev.json.gz": ({"hours": EVERYTHING_H}, (1_163, 3_182_099, 199_419, 12_365)),
    "swe_agent_demos.jsonl.gz": ({"hours": EVERYTHING_H}, (230, 1_095_145, 68_550, 8_226)),
    "mt_bench_question.jsonl.gz": ({"hours": EVERYTHING_H}, (160, 14_759, 995, 648)),
}


def counts(trace):
    """(requests, prompt tokens, pages, distinct page ids); fails if arrivals go back."""
    num_requests = num_tokens = num_pages = 0
    distinct: set[int] = set()
    latest_s = 0.0
    for request in trace.requests():
        assert latest_s <= request.arrival_s
        assert len(request.page_ids) - 1 < request.num_tokens / trace.page_tokens < len(request.page_ids) + 1
        latest_s = request.arrival_s
        num_requests += 1
        num_tokens += request.num_tokens
        num_pages += len(request.page_ids)
        distinct.update(request.page_ids.tolist())
    return num_requests, num_tokens, num_pages, len(distinct)


@pytest.mark.parametrize(
    ("name", "options", "golden"), [(name, *rest) for name, rest in GOLDEN.items()], ids=GOLDEN
)
def test_counts(public_trace, name, options, golden):
    assert counts(open_trace(public_trace(name), **options)) == golden


def test_mooncake_infinite_cache(public_trace):
    seen: set[int] = set()
    num_hits = num_pages = 0
    for request in open_trace(public_trace("mooncake_conversation.jsonl.gz")).requests():
        pages = request.page_ids.tolist()
        num_hits += sum(1 for _ in itertools.takewhile(seen.__contains__, pages))
        num_pages += len(pages)
        seen.update(pages)
    assert num_hits / num_pages == pytest.approx(0.366, abs=0.0005)


def test_weka_defaults_and_a_choice_of_sessions(public_trace):
    assert counts(open_trace(public_trace(WEKA))) == (13_051, 1_496_619_813, 23_378_243, 899_131)
    assert counts(open_trace(public_trace(WEKA), sessions=20, hours=1, seed=7)) == (
        576,
        58_719_336,
        917_198,
        38_932,
    )


def test_weka_keeps_the_sharing_that_is_recorded(public_trace):
    """What is modelled joins sessions only: within one, prompts agree as far as their recorded ids do."""
    streams: dict[str, np.ndarray] = {}
    kept = 0
    for request in open_trace(public_trace(WEKA), hours=EVERYTHING_H).requests():
        before = streams.get(request.session)
        if before is not None:
            shorter = min(len(before), len(request.page_ids))
            agrees = before[:shorter] == request.page_ids[:shorter]
            kept += shorter if agrees.all() else int(agrees.argmin())
        streams[request.session] = request.page_ids
    assert kept == 36_152_227  # the sum of `keep` over the rows that are not near-duplicates


def test_weka_streams(public_trace):
    tracemalloc.start()
    try:
        num_requests = sum(1 for _ in open_trace(public_trace(WEKA)).requests())
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert num_requests > 10_000 and peak_bytes < 100 * 1024**2


def test_weka_sessions_share_their_tools(public_trace):
    """The pages that more than one session has are those of tools and system prompts, and no others."""
    owners: dict[int, set[str]] = {}
    for request in open_trace(public_trace(WEKA), hours=EVERYTHING_H).requests():
        for page in request.page_ids[:400].tolist():
            owners.setdefault(page, set()).add(request.session.split("/")[0])
    shared = [page for page, sessions in owners.items() if len(sessions) > 1]
    assert shared and all(page >> 62 == 1 for page in shared)
    assert len(shared) == 9_066


@pytest.mark.parametrize("name", ["mooncake_conversation.jsonl.gz", WEKA])
def test_our_record_of_a_public_trace(public_trace, tmp_path, name):
    trace = open_trace(public_trace(name))
    path = tmp_path / "t.jsonl.gz"
    write_trace(trace, path)
    found = open_trace(path)
    assert (found.name, found.page_tokens, found.notes) == (trace.name, trace.page_tokens, trace.notes)
    for ours, theirs in zip(found.requests(), trace.requests(), strict=True):
        assert ours.page_ids.tobytes() == theirs.page_ids.tobytes()
        for key in (
            "arrival_s",
            "num_tokens",
            "output_tokens",
            "service_s",
            "finish",
            "session",
            "namespace",
        ):
            assert getattr(ours, key) == getattr(theirs, key)
    assert path.stat().st_size < 3 * public_trace(name).stat().st_size
