"""A load-back that fails half way: no wrong token, no leak, and the requests go on without it."""

from __future__ import annotations

import logging

import pytest

from eval import fetch_failures
from radiximp.serving.fetch import failure
from tests.sglang.admission_rig import AdmissionRig
from tests.sglang.fetch_faults import FetchFaults


@pytest.fixture
def rig():
    made = AdmissionRig("cost")
    yield made
    made.close()


@pytest.fixture
def faults():
    with FetchFaults() as made:
        yield made


def prompt(num_tokens: int, first: int = 1000) -> list[int]:
    return list(range(first, first + num_tokens))


def test_a_failed_copy_is_undone_and_its_requests_compute(rig, faults, caplog):
    rig.demote(prompt(320))
    rig.demote(prompt(160, first=5000))
    requests = [
        rig.request([*prompt(320), 8]),
        rig.request([*prompt(160, first=5000), 8]),
        rig.request(prompt(64, 9000)),
    ]
    rig.scheduler.waiting_queue = list(requests)
    faults.breaks_copies = True
    free = rig.allocator.available_size() + rig.core.evictable_size()
    with caplog.at_level(logging.WARNING):
        assert rig.run_pass() is None
    assert faults.num_broken_copies == 1
    assert "3 requests go on without the 480 tokens that could not be fetched" in caplog.text
    assert rig.scheduler.waiting_queue == requests
    assert rig.allocator.available_size() + rig.core.evictable_size() == free
    rig.check_idle()

    assert rig.run_pass() == requests, "in the next pass they are admitted without the host"
    assert [rig.finish(request) for request in requests] == [0, 0, 0]
    assert [request.host_loaded_length for request in requests] == [0, 0, 0]
    assert faults.num_broken_copies == 1
    rig.check_idle()

    faults.breaks_copies = False
    assert rig.serve([*prompt(320), 9]).prefix_len == 320
    rig.check_idle()


def test_a_shared_host_prefix_is_taken_back_once(rig, faults):
    rig.demote([*prompt(160), *prompt(160, 3000)])
    rig.demote([*prompt(160), *prompt(96, 4000)])
    faults.breaks_copies = True
    requests = [
        rig.request([*prompt(160), *prompt(160, 3000), 8]),
        rig.request([*prompt(160), *prompt(96, 4000), 8]),
    ]
    rig.scheduler.waiting_queue = list(requests)
    assert rig.run_pass() is None
    rig.check_idle()
    assert rig.run_pass() == requests
    for request in requests:
        rig.finish(request)
    rig.check_idle()


@pytest.mark.parametrize("has_next_chunk, is_last_chunk", [(True, False), (True, True), (False, False)])
def test_a_request_that_was_begun_goes_on_and_is_counted_back(rig, faults, has_next_chunk, is_last_chunk):
    """SGLang counts a chunk that has others after it; what a last chunk leaves behind is nobody."""
    rig.demote(prompt(160))
    faults.breaks_copies = True
    begun, fetching = rig.request(prompt(64, 9000)), rig.request([*prompt(160), 8])
    rig.admit(fetching)
    if has_next_chunk:
        rig.fetch.adder.can_run_list.insert(0, begun)
    rig.scheduler.chunked_req = None if is_last_chunk else begun
    begun.inflight_middle_chunks = 1 if is_last_chunk else 2
    with pytest.raises(failure.FetchFailed) as failed:
        rig.cache.ready_to_load_host_cache()
    assert failure.withdraw(rig.fetch, rig.scheduler) == [fetching]
    failure.take_back(rig.fetch, failed.value.operations)
    assert rig.scheduler.chunked_req is begun
    assert begun.inflight_middle_chunks == 1
    rig.check_idle()


def test_a_request_that_was_to_be_chunked_is_not_begun(rig, faults):
    rig.demote(prompt(160))
    faults.breaks_copies = True
    fetching = rig.request([*prompt(160), 8])
    rig.admit(fetching)
    rig.scheduler.chunked_req, fetching.inflight_middle_chunks = fetching, 1
    with pytest.raises(failure.FetchFailed) as failed:
        rig.cache.ready_to_load_host_cache()
    assert failure.withdraw(rig.fetch, rig.scheduler) == [fetching]
    failure.take_back(rig.fetch, failed.value.operations)
    assert (rig.scheduler.chunked_req, fetching.inflight_middle_chunks) == (None, 0)
    rig.check_idle()


@pytest.mark.parametrize("write_policy", ["write_through", "write_back"])
def test_many_requests_over_copies_that_fail_now_and_then(faults, write_policy):
    rig = AdmissionRig("measure", device_tokens=640, write_policy=write_policy, host_ratio=2.0)
    prompts = [prompt(160 + 16 * (i % 5), first=10_000 * (i % 9)) for i in range(120)]
    for number, tokens in enumerate(prompts):
        faults.breaks_copies = number % 3 == 0
        rig.scheduler.waiting_queue = [rig.request([*tokens, 5])]
        batch = rig.run_pass() or rig.run_pass()
        assert len(batch) == 1
        rig.finish(batch[0])
        rig.check_idle()
    assert faults.num_broken_copies > 5
    assert rig.fetch.counts["fetch_all"] > 10
    rig.close()


def test_a_host_without_room_takes_nothing_and_loses_nothing():
    rig = AdmissionRig("cost", device_tokens=640, host_ratio=1.05)
    for number in range(60):
        assert rig.serve([*prompt(320, first=1000 * (number % 7)), 3]).prefix_len in (0, 320)
        rig.check_idle()
    rig.close()


def test_all_faults_of_all_tiers_in_turn():
    told = fetch_failures.run(num_requests=60, seed=1)
    assert told["broken copies"] > 0
    assert told["requests: prefetch_late"] > 0
    assert told["cached tokens, none"] > 0
