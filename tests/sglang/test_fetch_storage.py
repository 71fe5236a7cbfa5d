"""The storage tier that is slow, silent, cut short or gone: the wait is bounded and what came is right."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from sglang.srt.runtime_context import get_parallel

from radiximp.cost.live import STORAGE
from tests.sglang.admission_rig import AdmissionRig
from tests.sglang.fetch_faults import LIMIT_S, FetchFaults

PROMPT = list(range(1000, 1512))


@pytest.fixture
def rig_of(tmp_path):
    rigs = []

    def make(mode: str = "cost") -> AdmissionRig:
        rig = AdmissionRig(mode, mem_layout="page_first_direct", storage_path=str(tmp_path))
        rig.cache.prefetch_threshold = 16
        rigs.append(rig)
        return rig

    with get_parallel().override(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1):
        yield make
        for rig in rigs:
            rig.cache.shutdown()
            rig.close()


@pytest.fixture
def faults():
    with FetchFaults() as made:
        yield made


def wait_for(is_done) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not is_done():
        assert time.monotonic() < end_s, "not within the limit"


def check_idle(rig: AdmissionRig) -> None:
    """Once the storage's threads are done, nothing is locked or lost."""
    wait_for(rig.has_settled)
    rig.check_idle()


def store(rig: AdmissionRig, tmp_path: Path) -> list[Path]:
    """Have PROMPT in storage alone; returns its files."""
    rig.serve([*PROMPT, 7])

    def is_stored() -> bool:
        rig.drain()
        return (
            not rig.cache.ongoing_backup and len(list(tmp_path.glob("*.bin"))) == len(PROMPT) // rig.page_size
        )

    wait_for(is_stored)
    rig.cache.reset()
    rig.allocator.clear()
    return sorted(tmp_path.glob("*.bin"))


def ask(rig: AdmissionRig, tokens: list[int]):
    """A request that was received."""
    request = rig.request(tokens)
    rig.ask_storage(request)
    return request


def admit(rig: AdmissionRig, request) -> int:
    """Poll as the scheduler does until the request may go; serve it. Returns its cached tokens."""
    wait_for(lambda: rig.has_storage_done(request))
    rig.scheduler.waiting_queue = [request]
    assert rig.run_pass() == [request]
    return rig.finish(request)


def test_what_storage_holds_is_measured_and_loaded(rig_of, tmp_path):
    rig = rig_of()
    store(rig, tmp_path)
    assert admit(rig, ask(rig, [*PROMPT, 7])) == len(PROMPT)
    told = rig.fetch.describe()["tiers"]["storage"]
    assert told["samples"] == 1
    assert told["s_per_token"] > 0
    check_idle(rig)


def test_a_truncated_file_ends_what_is_taken(rig_of, tmp_path):
    rig = rig_of()
    for path in store(rig, tmp_path)[::3]:
        path.write_bytes(path.read_bytes()[:10])
    assert admit(rig, ask(rig, [*PROMPT, 7])) < len(PROMPT)
    check_idle(rig)


def test_a_storage_that_never_answers_is_waited_for_as_long_as_a_prefill_takes(rig_of, tmp_path, faults):
    rig = rig_of()
    store(rig, tmp_path)
    faults.answers.clear()
    rig.teach(0.001, 1e-6, 2000)
    rig.cache.prefetch_timeout_base = 1e6
    request = ask(rig, [*PROMPT, 7])
    begun_s = time.monotonic()
    assert admit(rig, request) == 0
    assert len(PROMPT) / 2000 * 0.9 < time.monotonic() - begun_s < LIMIT_S / 2
    assert rig.fetch.counts["prefetch_late"] == 1
    faults.answers.set()
    check_idle(rig)


def test_measuring_alone_waits_as_sglang_does(rig_of, tmp_path, faults):
    rig = rig_of("measure")
    store(rig, tmp_path)
    faults.answers.clear()
    rig.teach(0.001, 1e-6, 1e6)
    request = ask(rig, [*PROMPT, 7])
    for _ in range(50):
        assert not rig.cache.check_prefetch_progress(request.cache_request_handle)
    faults.answers.set()
    assert admit(rig, request) == len(PROMPT)


def test_a_storage_slower_than_a_prefill_is_not_asked(rig_of, tmp_path):
    rig = rig_of()
    store(rig, tmp_path)
    rig.teach(0.001, 1e-6, 1e5)
    for num_tokens in (64, 512, 128, 256):
        rig.fetch.costs.note_transfer(STORAGE, num_tokens, 1.0)
    assert admit(rig, ask(rig, [*PROMPT, 7])) == 0
    assert rig.fetch.counts["prefetch_declined"] == 1
    check_idle(rig)
