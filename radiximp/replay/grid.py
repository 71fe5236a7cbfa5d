"""Many cells at once: traces x seeds x sizes x policies, each replayed by whichever process is free."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from radiximp.config import PolicyConfig
from radiximp.replay.readers import open_trace
from radiximp.replay.run import Progress, Row, replay_one
from radiximp.replay.survey import Survey, survey
from radiximp.replay.trace import Trace
from radiximp.replay.workers import run_all


@dataclass(frozen=True, slots=True)
class Source:
    """A trace as a process opens it for itself, and the name it has in tables."""

    path: Path
    name: str = ""
    format: str = "auto"
    page_tokens: int | None = None
    sessions: int | None = None
    hours: float | None = None

    def open(self, seed: int) -> Trace:
        """The trace. Raises TraceError and OSError."""
        trace = open_trace(
            self.path,
            self.format,
            page_tokens=self.page_tokens,
            sessions=self.sessions,
            hours=self.hours,
            seed=seed,
        )
        return replace(trace, name=self.name) if self.name else trace


@dataclass(frozen=True, slots=True)
class Cell:
    """One replay; num_requests and num_warmup come from the survey of the source under the same seed."""

    source: Source
    seed: int
    policy: str
    config: PolicyConfig
    capacity_pages: int
    host_capacity_pages: int
    num_requests: int
    num_warmup: int
    write_policy: str = "write_through"
    pin_running: bool = False


def named(sources: Sequence[Source], names: Sequence[str]) -> list[Source]:
    """The sources under their traces' names, the second of a name as `name#2`, or the next number that is free."""
    taken, known, found = set(), set(names), []
    for source, name in zip(sources, names, strict=True):
        numbered = (f"{name}#{number}" for number in itertools.count(2))
        free = name if name not in taken else next(n for n in numbered if n not in taken | known)
        taken.add(free)
        found.append(replace(source, name=free))
    return found


def survey_all(
    sources: Sequence[tuple[Source, int]], num_processes: int, on_progress: Progress
) -> list[Survey]:
    """A survey per (source, seed), in order. Raises TraceError."""
    return run_all(_survey, sources, num_processes, on_progress)


def replay_all(cells: Sequence[Cell], num_processes: int, on_progress: Progress) -> list[Row]:
    """A row per cell, in order. Raises TraceError."""
    return run_all(_replay, cells, num_processes, on_progress)


def _survey(task: tuple[Source, int], on_progress: Progress) -> Survey:
    source, seed = task
    return survey(source.open(seed), on_progress)


def _replay(cell: Cell, on_progress: Progress) -> Row:
    return replay_one(
        cell.source.open(cell.seed),
        cell.policy,
        cell.config,
        cell.capacity_pages,
        cell.host_capacity_pages,
        num_requests=cell.num_requests,
        num_warmup=cell.num_warmup,
        write_policy=cell.write_policy,
        pin_running=cell.pin_running,
        seed=cell.seed,
        on_progress=on_progress,
    )
