"""What is replayed, by name: the public traces where they are present, and the generated ones of `eval/workloads.py`."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from eval.workloads import GENERATORS, adversarial
from radiximp.replay.capacity import parse_capacities
from radiximp.replay.readers import open_trace
from radiximp.replay.survey import Survey, survey
from radiximp.replay.trace import Trace, TraceError

FOLDER_VARIABLE = "RADIXIMP_TRACES"
# Of the generated traces, sizes are shares of this many pages.
WORKING_SET_PAGES = 2000
# A smoke run replays this many generated requests in place of each trace, at this share of their pages.
_SMOKE_REQUESTS = 600
_SMOKE_CAPACITY = "20%"


@dataclass(frozen=True, slots=True)
class Workload:
    """file: "" where it is generated under its own name. hours, sessions: as `radiximp replay` takes them."""

    title: str
    file: str = ""
    sessions: int | None = None
    hours: float | None = None


AGENTS = "agents-150-2h"
AGENTS_ALL = "agents-all-4h"
WORKLOADS = {
    "mooncake": Workload("Mooncake conversation", "mooncake_conversation.jsonl.gz"),
    AGENTS: Workload("coding agents, 150 sessions in 2 h", "weka_sessions_dev.jsonl.gz", 150, 2.0),
    AGENTS_ALL: Workload("coding agents, all sessions in 4 h", "weka_sessions_dev.jsonl.gz", None, 4.0),
    "tau-bench": Workload("tau-bench airline", "tau_bench_airline_dev.json.gz"),
    "miniswe": Workload("LMCache mini-swe-agent", "lmcache_miniswe.jsonl.gz"),
    "swe-agent": Workload("SWE-agent demonstrations", "swe_agent_demos.jsonl.gz"),
    "mt-bench": Workload("MT-bench questions", "mt_bench_question.jsonl.gz"),
    **{name: Workload(name) for name in GENERATORS},
}
TEXT = ("tau-bench", "miniswe", "swe-agent", "mt-bench")


def title(name: str) -> str:
    """How a table calls it."""
    return WORKLOADS[name].title


def folder() -> Path:
    """Where the public traces are; raises TraceError with one line if they are not."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "traces"
    chosen = Path(os.environ.get(FOLDER_VARIABLE, beside))
    missing = [w.file for w in WORKLOADS.values() if w.file and not (chosen / w.file).is_file()]
    if missing:
        raise TraceError(
            f"no {missing[0]} in {chosen}: set {FOLDER_VARIABLE} to the folder of the public traces "
            "(--part adversarial,cost and --smoke need none)"
        )
    return chosen


def open_workload(name: str, seed: int, is_smoke: bool = False) -> Trace:
    """The trace under its workload's name. Raises TraceError."""
    workload = WORKLOADS[name]
    if is_smoke:
        trace = adversarial(name if name in GENERATORS else "scan", seed)
        requests = trace.requests
        return replace(trace, name=name, requests=lambda: islice(requests(), _SMOKE_REQUESTS))
    if not workload.file:
        return adversarial(name, seed)
    trace = open_trace(folder() / workload.file, sessions=workload.sessions, hours=workload.hours, seed=seed)
    return replace(trace, name=name)


@functools.lru_cache(maxsize=64)
def survey_of(name: str, seed: int, is_smoke: bool = False) -> Survey:
    """One pass over the trace, once per process."""
    return survey(open_workload(name, seed, is_smoke))


def pages_of(name: str, seed: int, capacity: str, host: str, is_smoke: bool) -> tuple[int, int]:
    """(device, host) pages of sizes as a table writes them."""
    surveyed = survey_of(name, seed, is_smoke)
    if name in GENERATORS and not is_smoke:
        surveyed = replace(surveyed, num_distinct_pages=WORKING_SET_PAGES)
    if name in GENERATORS and capacity.endswith("%"):
        device = int(float(capacity[:-1]) / 100 * surveyed.num_distinct_pages)
    else:
        (parsed,) = parse_capacities(_SMOKE_CAPACITY if is_smoke else capacity, "capacity")
        device = parsed.pages(surveyed, name)
    (parsed_host,) = parse_capacities(host, "host", is_host=True)
    return device, parsed_host.pages(surveyed, name, device)
