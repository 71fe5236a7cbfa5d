"""`radiximp replay`: what would each policy have found in the cache, on your own requests?

Drives the policy objects of the server over a trace, at every size asked for; nothing is served.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from pathlib import Path
from typing import Any

from radiximp import __version__
from radiximp.cli import CommandError
from radiximp.cli import trace_options as options
from radiximp.config import PolicyConfig
from radiximp.replay import plot, table
from radiximp.replay.capacity import Capacity, tokens_text
from radiximp.replay.grid import Cell, Source
from radiximp.replay.record_format import is_record
from radiximp.replay.recorded import replay_record
from radiximp.replay.run import BOUND, POLICY_NAMES, Row
from radiximp.replay.survey import Survey

# trace name -> (device, host) as asked for -> policy -> a row per seed
Groups = dict[tuple[str, str], dict[str, list[Row]]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "traces",
        nargs="+",
        type=Path,
        metavar="TRACE",
        help="trace files, plain or gzip; or what a server recorded (record_path), to be replayed as it was",
    )
    parser.add_argument(
        "--policy", default="lru,importance", metavar="LIST", help=f"of {', '.join(POLICY_NAMES)}"
    )
    parser.add_argument(
        "--capacity", default="1%,5%,20%", metavar="LIST",
        help="of the device: tokens (250k, 2M) or a share of the trace's distinct pages (default 1%%,5%%,20%%)",
    )  # fmt: skip
    parser.add_argument(
        "--host-capacity",
        default="0",
        metavar="LIST",
        help="of the host: the same, or 2x the device (default none)",
    )
    options.add_trace_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print a table per trace, 0; or a verdict per record, 1 if a replay differs. User errors raise `CommandError`."""
    with options.user_errors():
        are_records = [is_record(path) for path in args.traces]
        if not any(are_records):
            return _run(args)
        for path in args.traces:
            path.stat()
        if not all(are_records):
            raise CommandError("a server's records and traces are replayed apart: name one kind only")
        check_no_options(args)
        return _replay_records(args.traces)


def check_no_options(args: argparse.Namespace) -> None:
    """Raise CommandError for an option that the replay of a record would ignore."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    defaults = vars(parser.parse_args(["record"]))
    given = [name for name in defaults if name != "traces" and getattr(args, name) != defaults[name]]
    if given:
        flags = ", ".join("--" + name.replace("_", "-") for name in given)
        raise CommandError(f"a server's record is replayed as it was recorded: leave out {flags}")


def _replay_records(paths: list[Path]) -> int:
    """Hold the policy to each record; policy, configuration and sizes are the record's own."""
    are_equal = True
    for path in paths:
        found = replay_record(path)
        print(f"{path}: {found.verdict()}")
        are_equal &= found.difference is None
    return 0 if are_equal else 1


def _run(args: argparse.Namespace) -> int:
    policies = parse_policies(args.policy)
    capacities = options.parse_sizes(args.capacity, "--capacity")
    hosts = options.parse_sizes(args.host_capacity, "--host-capacity", is_host=True)
    seeds = options.parse_seeds(args.seed)
    config = options.parse_config(args.policy_config)
    if BOUND in policies and (args.pin_running or any(host.amount for host in hosts)):
        raise CommandError(
            f"--policy {BOUND}: bounds one tier only; leave out --host-capacity and --pin-running"
        )
    options.check_common(args, args.traces)
    sources = options.open_sources(args.traces, args, seeds[0])
    surveys = options.survey_sources(sources, seeds, args.jobs)

    asked = list(itertools.product(sources, capacities, hosts, policies, seeds))
    cells = [
        cell_of(source, capacity, host, policy, seed, surveys[source.name, seed], config, args)
        for source, capacity, host, policy, seed in asked
    ]
    rows = options.replay_cells(cells, args.jobs)

    traces: dict[str, Groups] = {source.name: {} for source in sources}
    for (source, capacity, host, policy, _), row in zip(asked, rows, strict=True):
        group = traces[source.name].setdefault((capacity.text, host.text), {})
        group.setdefault(policy, []).append(row)
    notes = {source.name: options.notes_of(source, surveys) for source in sources}
    for name, groups in traces.items():
        found = (row for rows in groups.values() for row in itertools.chain(*rows.values()))
        if num_refused := max(row.refused_requests for row in found):
            notes[name].append(
                f"Up to {num_refused:,} requests are larger than a device and count as not found."
            )
    try:
        for source in sources:
            by_seed = [surveys[source.name, seed] for seed in seeds]
            show(source, by_seed, traces[source.name], notes, args.warmup)
    finally:  # a closed pipe must not cost the result of a long run
        options.save_results(
            args,
            lambda: as_json(rows, notes, config, args),
            lambda path: plot.plot_comparison(path, traces),
        )
    return 0


def cell_of(
    source: Source,
    capacity: Capacity,
    host: Capacity,
    policy: str,
    seed: int,
    survey: Survey,
    config: PolicyConfig,
    args: argparse.Namespace,
) -> Cell:
    """One replay; raises CapacityError where a size is less than a page of the trace."""
    device_pages = capacity.pages(survey, source.name)
    return Cell(
        source=source,
        seed=seed,
        policy=policy,
        config=config,
        capacity_pages=device_pages,
        host_capacity_pages=host.pages(survey, source.name, device_pages),
        num_requests=survey.num_requests,
        num_warmup=survey.num_warmup(args.warmup),
        write_policy=args.write_policy,
        pin_running=args.pin_running,
    )


def parse_policies(text: str) -> list[str]:
    """The policies of a list, each once."""
    names = list(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in POLICY_NAMES:
            raise CommandError(f"--policy: expected one of {', '.join(POLICY_NAMES)}, got {name!r}")
    return names


def show(
    source: Source, surveys: list[Survey], groups: Groups, notes: dict[str, list[str]], warmup: float
) -> None:
    """The table of one trace under what was read and what was modelled."""
    first = surveys[0]
    seed = "" if len(surveys) == 1 else " (first seed)"
    title = (
        f"{source.name}{seed}: {first.num_requests:,} requests, {tokens_text(first.num_prompt_tokens)} prompt tokens, "
        f"{tokens_text(first.num_distinct_tokens)} of them distinct; pages of {first.page_tokens} tokens"
    )
    lines = [title, *(f"  note: {note}" for note in notes[source.name])]
    num_warmup = first.num_warmup(warmup)
    if num_warmup:
        lines.append(f"  note: The first {num_warmup:,} requests fill the cache and are not counted.")
    table.show(*lines, table.comparison(groups), "")


def as_json(
    rows: list[Row], notes: dict[str, list[str]], config: PolicyConfig, args: argparse.Namespace
) -> dict[str, Any]:
    """The result file: everything that the rows depend on beside the traces themselves."""
    replayed = ("format", "hours", "page_tokens", "pin_running", "sessions", "warmup", "write_policy")
    return {
        "rows": [row.as_json() for row in rows],
        "notes": notes,
        "config": {"policy": dataclasses.asdict(config), **{key: getattr(args, key) for key in replayed}},
        "version": __version__,
    }
