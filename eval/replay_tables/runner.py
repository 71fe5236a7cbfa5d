"""Runs the cells of a part that its result file does not have yet, and writes the file as they finish.

A finished cell is one with the same task and the same code: `version_of` hashes what could change its numbers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from eval.replay_tables import plan
from eval.replay_tables.plan import Task
from eval.replay_tables.variants import applied
from eval.replay_tables.workloads import open_workload, pages_of, survey_of
from radiximp.config import PolicyConfig
from radiximp.replay.files import write_json
from radiximp.replay.run import replay_one

ROOT = Path(__file__).resolve().parents[2]
WARMUP = 0.2
STUDIES = ("ablation", "sensitivity")
_SAVE_EVERY_S = 10.0
# What is done with rows, and the replay of records: no cell's numbers come from there.
NOT_IN_A_CELL = {
    "files.py", "grid.py", "plan_table.py", "planning.py", "plot.py", "record_format.py", "recorded.py",
    "recorded_tree.py", "table.py", "tuning.py", "workers.py",
}  # fmt: skip
_TASK_KEYS = tuple(field.name for field in dataclasses.fields(Task))

Document = dict[str, Any]


@cache
def version_of(is_variant: bool = False) -> str:
    """A hash of the sources that a cell's numbers come from."""
    replay = (path for path in ROOT.glob("radiximp/replay/**/*.py") if path.name not in NOT_IN_A_CELL)
    paths = sorted([*ROOT.glob("radiximp/policy/**/*.py"), *replay])
    paths += [ROOT / "radiximp/config.py", ROOT / "eval/workloads.py"]
    if is_variant:
        paths.append(ROOT / "eval/replay_tables/variants.py")
    digest = hashlib.blake2b(digest_size=8)
    for path in paths:
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def key_of(cell: Task | dict[str, Any], version: str | None = None) -> bytes:
    """What makes a cell the same cell; version: of the code as it is now if None."""
    fields = dataclasses.asdict(cell) if isinstance(cell, Task) else {key: cell[key] for key in _TASK_KEYS}
    fields["settings"] = dict(fields["settings"])
    if version is None:
        version = version_of(bool(fields["variant"]))
    return orjson.dumps([fields, version], option=orjson.OPT_SORT_KEYS)


def run_task(task: Task) -> dict[str, Any]:
    """The row of one cell: as `radiximp replay` writes it, and the task."""
    surveyed = survey_of(task.workload, task.seed, task.is_smoke)
    device, host = pages_of(task.workload, task.seed, task.capacity, task.host, task.is_smoke)
    settings = dict(task.settings)
    with applied(task.variant):
        row = replay_one(
            open_workload(task.workload, task.seed, task.is_smoke),
            task.policy,
            PolicyConfig.from_mapping(settings),
            device,
            host,
            num_requests=surveyed.num_requests,
            num_warmup=surveyed.num_warmup(WARMUP),
            write_policy=task.write_policy,
            pin_running=task.pin_running,
            seed=task.seed,
        )
    version = version_of(bool(task.variant))
    return {**row.as_json(), **dataclasses.asdict(task), "settings": settings, "version": version}


def run_part(
    part: str,
    tasks: Sequence[Task],
    folder: Path,
    jobs: int,
    until_s: float,
    policies: Sequence[str] = (),
) -> Document:
    """Run what is missing, until the monotonic clock says `until_s`; returns what the file then holds.

    policies: run no others, if given. What earlier code found stays in the file until it runs again, with the version
    of that code, except in a study, whose rows are compared with each other.
    """
    path = folder / f"{part}.json"
    known = _known_rows(folder)
    before = read_part(part, folder)["rows"] if path.is_file() and part not in STUDIES else []
    earlier = {key_of(row, ""): row for row in before}
    keys = [key_of(task) for task in tasks]
    waiting = [
        task
        for task, key in zip(tasks, keys, strict=True)
        if key not in known and (not policies or task.policy in policies)
    ]
    saved_s = time.monotonic()

    def document() -> Document:
        rows = [
            known.get(key) or earlier.get(key_of(task, "")) for task, key in zip(tasks, keys, strict=True)
        ]
        rows = [row for row in rows if row is not None]
        num_stale = sum(row["version"] != version_of(bool(row["variant"])) for row in rows)
        return {"part": part, "cells": len(tasks), "stale": num_stale, "warmup": WARMUP, "rows": rows}

    try:
        with progress(f"{part}: cells", len(waiting)) as advance:
            for task, row in _finished(waiting, jobs, until_s):
                known[key_of(task)] = row
                advance()
                if time.monotonic() > saved_s + _SAVE_EVERY_S:
                    write_json(path, document())
                    saved_s = time.monotonic()
    finally:
        write_json(path, document())
    return document()


def read_part(part: str, folder: Path) -> Document:
    """What an earlier run wrote."""
    return orjson.loads((folder / f"{part}.json").read_bytes())


def _known_rows(folder: Path) -> dict[bytes, dict[str, Any]]:
    """Rows of every part that the code as it is now gives."""
    known = {}
    for part in plan.PARTS:
        if (folder / f"{part}.json").is_file():
            for row in read_part(part, folder)["rows"]:
                if row["version"] == version_of(bool(row["variant"])):
                    known[key_of(row)] = row
    return known


def _finished(tasks: Sequence[Task], jobs: int, until_s: float) -> Iterator[tuple[Task, dict[str, Any]]]:
    """(task, row) as they finish; none starts after `until_s`."""
    if jobs == 1:
        for task in tasks:
            if time.monotonic() > until_s:
                return
            yield task, run_task(task)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        try:
            futures = {pool.submit(run_task, task): task for task in tasks}
            for future in as_completed(futures):
                yield futures[future], future.result()
                if time.monotonic() > until_s:
                    return
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def progress(text: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr while the block runs, a line a minute where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        "{task.description}",
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(text, total=total)
        done, told_s = 0, time.monotonic()

        def advance() -> None:
            nonlocal done, told_s
            done += 1
            bar.advance(task)
            if not sys.stderr.isatty() and time.monotonic() > told_s + 60:
                told_s = time.monotonic()
                print(f"{text} {done}/{total}", file=sys.stderr, flush=True)

        yield advance
