"""What `radiximp replay` and `radiximp tune` share: the options of a trace, and how they are checked.

Everything a user can get wrong is told before the first long pass, as one `CommandError` line.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from radiximp.cli import CommandError
from radiximp.config import ConfigError, PolicyConfig
from radiximp.replay import files, grid, plot, table
from radiximp.replay.capacity import Capacity, CapacityError, parse_capacities
from radiximp.replay.readers import FORMATS
from radiximp.replay.record_format import RecordError
from radiximp.replay.run import WRITE_POLICIES
from radiximp.replay.survey import Survey
from radiximp.replay.trace import TraceError
from radiximp.replay.workers import WorkerError

# Beyond any machine and any trace, and within what JSON and a time in seconds hold exactly.
_MAX_NUMBER = 10**15
_MAX_MULTIPLE = 1000
_MAX_SESSIONS = 10**9
_MAX_HOURS = 1e6


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the trace and of every replay of it."""
    parser.add_argument(
        "--format", choices=("auto", *FORMATS), default="auto", help="of the files (default auto)"
    )
    parser.add_argument(
        "--page-tokens", type=int, metavar="N", help="tokens of a page, where the trace is text"
    )
    parser.add_argument(
        "--sessions", type=int, metavar="N", help="how many sessions, where their start times are modelled"
    )
    parser.add_argument("--hours", type=float, metavar="H", help="hours in which those sessions start")
    parser.add_argument(
        "--warmup", type=float, default=0.2, metavar="SHARE",
        help="share of the requests that fill the cache before anything is counted (default 0.2)",
    )  # fmt: skip
    parser.add_argument(
        "--pin-running", action="store_true", help="a request holds its memory while it runs, as in a server"
    )
    parser.add_argument(
        "--write-policy", choices=WRITE_POLICIES, default="write_through", help="when the host gets a copy"
    )
    parser.add_argument(
        "--seed", default="0", metavar="N[,N...]", help="of what is modelled; several show the spread"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default 1)")
    parser.add_argument(
        "--policy-config", default="{}", metavar="JSON", help="as for --radix-eviction-policy-config"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them: .png, .svg or .pdf")


@contextmanager
def user_errors() -> Iterator[None]:
    """What a trace, a size or a file says is wrong becomes the one line that the command prints."""
    try:
        yield
    except (
        TraceError, RecordError, CapacityError, ConfigError, WorkerError, files.FileError, plot.PlotError
    ) as error:  # fmt: skip
        raise CommandError(str(error)) from error
    except OSError as error:
        if error.filename is None:  # a closed pipe, say
            raise
        raise CommandError(f"cannot read {error.filename}: {error.strerror}") from error


def check_common(args: argparse.Namespace, paths: list[Path]) -> None:
    """Raise CommandError, or an error that `user_errors` translates, for options that are wrong by themselves."""
    if not (math.isfinite(args.warmup) and 0 <= args.warmup < 1):
        raise CommandError(f"--warmup: expected a share from 0 to less than 1, got {args.warmup:g}")
    if args.jobs < 1:
        raise CommandError(f"--jobs: expected at least 1, got {args.jobs}")
    if args.hours is not None and args.hours > _MAX_HOURS:
        raise CommandError(f"--hours: expected at most {_MAX_HOURS:g}, got {args.hours:g}")
    if args.sessions is not None and args.sessions > _MAX_SESSIONS:
        raise CommandError(f"--sessions: expected at most {_MAX_SESSIONS}, got {args.sessions}")
    taken = {path.resolve(): "the trace" for path in paths}
    for flag, path in (("--json", args.json), ("--plot", args.plot)):
        if path is None:
            continue
        files.check_writable(path)
        if path.resolve() in taken:
            raise CommandError(f"{flag}: {path} is {taken[path.resolve()]}; name another file")
        taken[path.resolve()] = f"the file of {flag}"
    if args.plot:
        plot.check_plot(args.plot)


def parse_seeds(text: str) -> list[int]:
    """The seeds of a list, each once."""
    try:
        seeds = list(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise CommandError(f"--seed: expected whole numbers, as in 0,1,2, got {text[:80]!r}") from None
    if any(abs(seed) > _MAX_NUMBER for seed in seeds):
        raise CommandError(f"--seed: expected whole numbers up to {_MAX_NUMBER:g}, got {text[:80]!r}")
    return seeds


def parse_sizes(text: str, flag: str, is_host: bool = False) -> list[Capacity]:
    """The sizes of a list. Raises CapacityError, and CommandError for what no machine has."""
    if max(map(len, text.split(","))) > 40:
        raise CommandError(f"{flag}: expected sizes, as in 5%,250k,2M, got {text[:80]!r}")
    sizes = parse_capacities(text, flag, is_host=is_host)
    if any(size.amount > (_MAX_MULTIPLE if size.unit == "x" else _MAX_NUMBER) for size in sizes):
        raise CommandError(
            f"{flag}: expected at most {_MAX_NUMBER:g} tokens, or {_MAX_MULTIPLE:g}x, got {text!r}"
        )
    return sizes


def parse_config(text: str) -> PolicyConfig:
    """The configuration in a flag's JSON. Raises CommandError and ConfigError."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise CommandError(f"--policy-config: expected JSON, got {text!r} ({error})") from None
    if not isinstance(value, dict):
        raise CommandError(f"--policy-config: expected a JSON object, got {text!r}")
    return PolicyConfig.from_mapping(value)


def open_sources(paths: list[Path], args: argparse.Namespace, seed: int) -> list[grid.Source]:
    """The sources under distinct names; opens each, so that what is wrong at their start is told now."""
    for path in paths:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise CommandError(f"cannot read {path}: a trace is read several times, so it must be a file")
        if not path.name.isprintable():
            raise CommandError(f"cannot name {path.name!r} in a result: rename the file, or link it")
    unnamed = [
        grid.Source(path, "", args.format, args.page_tokens, args.sessions, args.hours) for path in paths
    ]
    return grid.named(unnamed, [source.open(seed).name for source in unnamed])


def survey_sources(
    sources: list[grid.Source], seeds: list[int], num_processes: int
) -> dict[tuple[str, int], Survey]:
    """(trace name, seed) -> its survey. Raises TraceError."""
    tasks = [(source, seed) for source in sources for seed in seeds]
    with table.progress("counting distinct pages", None) as advance:
        surveys = grid.survey_all(tasks, num_processes, advance)
    found = {(source.name, seed): survey for (source, seed), survey in zip(tasks, surveys, strict=True)}
    for (name, _), survey in found.items():
        if survey.num_distinct_pages == 0:
            raise TraceError(f"{name}: no request has a page, so there is nothing to cache")
    return found


def replay_cells(cells: list[grid.Cell], num_processes: int) -> list:
    """A row per cell, with a bar meanwhile."""
    with table.progress("replaying", sum(cell.num_requests for cell in cells)) as advance:
        return grid.replay_all(cells, num_processes, advance)


def save_results(
    args: argparse.Namespace, result: Callable[[], dict[str, Any]], draw: Callable[[Path], None]
) -> None:
    """Write `--json` and `--plot` where they are asked for; a full disk costs the one, not the other too."""
    try:
        if args.json:
            files.write_json(args.json, result())
    finally:
        if args.plot:
            draw(args.plot)


def notes_of(source: grid.Source, surveys: dict[tuple[str, int], Survey]) -> list[str]:
    """What the trace's reader modelled, each sentence once over all seeds."""
    notes = (note for (name, _), survey in surveys.items() if name == source.name for note in survey.notes)
    return list(dict.fromkeys(notes))
