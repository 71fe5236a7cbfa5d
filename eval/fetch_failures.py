"""Many requests over tiers that fail: copies that raise, storage that is silent, files cut short, a host without room.

    python -m eval.fetch_failures --requests 1000 [--seed 0] [--json out.json]

SGLang's own tree, pools, admission and `file` storage without a model: every slot holds a number that only its prefix
gives, so each request checks that what it reads is its own KV. Exit 1 for a wrong token, a hang or a leak.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from sglang.srt.runtime_context import get_parallel

from radiximp.replay.files import write_json
from tests.sglang.admission_rig import AdmissionRig
from tests.sglang.fetch_faults import FetchFaults

FAULTS = ("none", "copy raises", "storage silent", "file truncated", "host full")
HANG_S = 20.0
PAGE_TOKENS = 16
DEVICE_TOKENS = 1024


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    report = run(args.requests, args.seed)
    print(json.dumps(report, indent=2))
    if args.json:
        write_json(args.json, report)
    print(f"{args.requests} requests: no wrong token, no hang, no leak")
    return 0


def run(num_requests: int, seed: int) -> dict[str, Any]:
    """Counts of what was served and what failed on the way. Raises AssertionError for a wrong token, a hang or a leak."""
    rng = random.Random(seed)
    told: Counter[str] = Counter()
    with (
        get_parallel().override(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1),
        tempfile.TemporaryDirectory(prefix="radiximp-storage-") as folder,
        FetchFaults() as faults,
    ):
        # A host that holds little more than the device is full most of the time.
        rigs = {is_small: _rig(folder, 1.1 if is_small else 3.0) for is_small in (False, True)}
        try:
            for number in range(num_requests):
                fault = rng.choice(FAULTS)
                rig = rigs[fault == "host full"]
                _set(faults, fault, Path(folder), rng)
                cached = _serve(rig, _prompt(rng), fault, told)
                told[f"requests, {fault}"] += 1
                told[f"cached tokens, {fault}"] += cached
                if number % 20 == 19:
                    _check_all(rigs, faults)
            _check_all(rigs, faults)
        finally:
            faults.answers.set()
            for rig in rigs.values():
                rig.cache.shutdown()
                rig.close()
        told["broken copies"] = faults.num_broken_copies
        for rig in rigs.values():
            told.update({f"requests: {name}": count for name, count in rig.fetch.counts.items()})
    return dict(sorted(told.items()))


def _rig(folder: str, host_ratio: float) -> AdmissionRig:
    rig = AdmissionRig(
        "cost",
        DEVICE_TOKENS,
        PAGE_TOKENS,
        mem_layout="page_first_direct",
        storage_path=folder,
        host_ratio=host_ratio,
    )
    rig.cache.prefetch_threshold = PAGE_TOKENS
    rig.teach(1e-6, 1e-9, 5000)
    return rig


def _prompt(rng: random.Random) -> list[int]:
    """One of 24 conversations, up to one of its turns."""
    first = 10_000 * (1 + rng.randrange(24))
    return list(range(first, first + PAGE_TOKENS * rng.randrange(4, 40) + 1))


def _set(faults: FetchFaults, fault: str, folder: Path, rng: random.Random) -> None:
    faults.breaks_copies = fault == "copy raises"
    if fault == "storage silent":
        faults.answers.clear()
    else:
        faults.answers.set()
    if fault == "file truncated":
        files = sorted(folder.glob("*.bin"))
        for path in rng.sample(files, min(len(files), 8)):
            path.write_bytes(path.read_bytes()[: rng.randrange(64)])


def _serve(rig: AdmissionRig, tokens: list[int], fault: str, told: Counter[str]) -> int:
    """One request from its arrival to its end; returns its cached tokens."""
    request = rig.request(tokens)
    rig.ask_storage(request)
    _wait(lambda: rig.has_storage_done(request), f"a request's storage, {fault}")
    rig.cache.pop_prefetch_loaded_span(request.cache_request_handle)
    rig.scheduler.waiting_queue = [request]
    batch = rig.run_pass()
    if batch is None:
        told["batches undone"] += 1
        batch = rig.run_pass()
    assert batch == [request], f"not admitted, {fault}"
    return rig.finish(request)


def _wait(is_done, what: str) -> None:
    end_s = time.monotonic() + HANG_S
    while not is_done():
        assert time.monotonic() < end_s, f"hang: {what}"
        time.sleep(0.001)


def _check_all(rigs: dict[bool, AdmissionRig], faults: FetchFaults) -> None:
    """Nothing is locked, in flight or lost on any tier."""
    faults.answers.set()
    for rig in rigs.values():
        _wait(rig.has_settled, "host memory is not given back")
        rig.check_idle()


if __name__ == "__main__":
    sys.exit(main())
