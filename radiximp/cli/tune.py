"""`radiximp tune`: how much memory pays off on your own requests, and is any setting worth changing?"""

from __future__ import annotations

import argparse
import dataclasses
import math
from pathlib import Path
from typing import Any

from radiximp import __version__
from radiximp.cli import CommandError
from radiximp.cli import trace_options as options
from radiximp.config import PolicyConfig
from radiximp.replay import plan_table, planning, plot, table, tuning
from radiximp.replay.capacity import tokens_text

DEFAULT_DEVICE = "0.5%,1.1%,2.3%,4.8%,10%,22%,47%,100%"
DEFAULT_HOST = "0,1x,2x,4x"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", type=Path, metavar="TRACE", help="a trace file, plain or gzip")
    parser.add_argument(
        "--device",
        metavar="LIST",
        help=f"device sizes, as --capacity of replay (default {DEFAULT_DEVICE})".replace("%", "%%"),
    )
    parser.add_argument(
        "--host", default=DEFAULT_HOST, metavar="LIST",
        help="host sizes: tokens, a share of the distinct pages, or times the device (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--prefill-tokens-per-s", type=float, default=8000.0, metavar="RATE",
        help="prefill speed of your server, for the seconds that hits save (default %(default)g)",
    )  # fmt: skip
    options.add_trace_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the plan; 0 unless `CommandError` is raised."""
    with options.user_errors():
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    devices = options.parse_sizes(args.device or DEFAULT_DEVICE, "--device")
    hosts = options.parse_sizes(args.host, "--host", is_host=True)
    seeds = options.parse_seeds(args.seed)
    config = options.parse_config(args.policy_config)
    if not (math.isfinite(args.prefill_tokens_per_s) and args.prefill_tokens_per_s > 0):
        raise CommandError(f"--prefill-tokens-per-s: expected more than 0, got {args.prefill_tokens_per_s:g}")
    options.check_common(args, [args.trace])
    (source,) = options.open_sources([args.trace], args, seeds[0])
    surveys = options.survey_sources([source], seeds, args.jobs)
    by_seed = {seed: surveys[source.name, seed] for seed in seeds}
    grid = planning.Grid(source, by_seed, config, args.warmup, args.write_policy, args.pin_running)
    sizes = grid.sizes(devices, hosts, skip_small=args.device is None)
    plan = grid.plan(sizes, options.replay_cells, args.jobs)
    verdicts = grid.verdicts(plan, options.replay_cells, args.jobs)
    given = "the defaults are" if config == PolicyConfig() else "the settings given are"
    conclusion = tuning.conclusion(verdicts, given)

    first = by_seed[seeds[0]]
    notes = options.notes_of(source, surveys)
    try:
        table.show(
            f"{source.name}: {first.num_requests:,} requests, "
            f"{tokens_text(first.num_distinct_tokens)} distinct tokens",
            *(f"  note: {note}" for note in [*notes, *planning.NOTES]),
            plan_table.sizes_table(plan, args.prefill_tokens_per_s),
            plan_table.knee_text(plan),
            plan_table.settings_table(verdicts),
            conclusion,
        )
    finally:  # a closed pipe must not cost the result of a long run
        options.save_results(
            args,
            lambda: as_json(plan, verdicts, conclusion, notes, config, args),
            lambda path: plot.plot_plan(path, source.name, plan),
        )
    return 0


def as_json(
    plan: planning.Plan,
    verdicts: list[tuning.Verdict],
    conclusion: str,
    notes: list[str],
    config: PolicyConfig,
    args: argparse.Namespace,
) -> dict[str, Any]:
    """The result file: every row behind the advice, and the advice."""
    replayed = (
        *("format", "hours", "page_tokens", "pin_running", "sessions", "warmup", "write_policy"),
        "prefill_tokens_per_s",
    )
    return {
        "rows": [
            {**row.as_json(), "saved_prefill_s": row.hit_tokens / args.prefill_tokens_per_s}
            for size in plan.sizes
            for rows in size.rows.values()
            for row in rows
        ],
        "knee_capacity_tokens": None if plan.knee is None else plan.knee.device_tokens,
        "settings": [
            {**dataclasses.asdict(verdict), "is_worth_changing": verdict.is_worth_changing}
            for verdict in verdicts
        ],
        "conclusion": conclusion,
        "notes": [*notes, *planning.NOTES],
        "config": {"policy": dataclasses.asdict(config), **{key: getattr(args, key) for key in replayed}},
        "version": __version__,
    }
