"""`radiximp calibrate`: what fetching and computing cost on a running server, predicted against measured."""

from __future__ import annotations

import argparse
import json
from typing import Any

from radiximp.cli import CommandError
from radiximp.cli.server_options import add_server_arguments, connected

_COLUMNS = [
    "rank",
    "what",
    "samples",
    "latency ms",
    "ms / 1k tokens",
    "GB/s",
    "predicted ms",
    "measured ms",
    "median error",
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_arguments(parser)


def run(args: argparse.Namespace) -> int:
    with connected(args) as client:
        answer = client.calibration()
    if args.json:
        print(json.dumps(answer))
        return 0
    for rank in answer["ranks"]:
        if "reason" in rank["calibration"]:
            raise CommandError(
                f"{args.url} measures nothing ({rank['calibration']['reason']}); start it with the hierarchical cache and "
                '--radix-eviction-policy-config \'{"fetch_decision": "measure"}\''
            )
    from rich.console import Console

    from radiximp.replay.table import simple_table

    table = simple_table(_COLUMNS)
    for rank in answer["ranks"]:
        for row in rows_of(rank["calibration"]):
            table.add_row(str(rank["dp_rank"]), *row)
    console = Console()
    console.print(table)
    for rank in answer["ranks"]:
        counts = ", ".join(f"{name} {count:,}" for name, count in rank["calibration"]["requests"].items())
        console.print(
            f"rank {rank['dp_rank']}, {rank['calibration']['mode']}: {counts or 'no request had KV on the host'}"
        )
    return 0


def rows_of(calibration: dict[str, Any]) -> list[list[str]]:
    """A row for each tier and for the prefill; a dash for what is not known."""
    rows = [
        _row(name, tier, tier["latency_s"], tier["s_per_token"], tier["gb_per_s"])
        for name, tier in calibration["tiers"].items()
    ]
    prefill = calibration["prefill"]
    return [*rows, _row("prefill", prefill, prefill["overhead_s"], prefill["s_per_token"], None)]


def _row(
    name: str, told: dict[str, Any], latency_s: float, s_per_token: float, gb_per_s: float | None
) -> list[str]:
    is_known = told["samples"] > 0
    error = told["median_error"]
    return [
        name,
        f"{told['samples']:,}",
        _number(1e3 * latency_s if is_known else None),
        _number(1e6 * s_per_token if is_known else None),
        _number(gb_per_s),
        _number(None if told["predicted_s"] is None else 1e3 * told["predicted_s"]),
        _number(None if told["measured_s"] is None else 1e3 * told["measured_s"]),
        "-" if error is None else f"{100 * error:.0f} %",
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3g}" if value < 100 else f"{value:,.0f}"
