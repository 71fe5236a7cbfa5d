"""`radiximp hotspots`: the prefixes that most requests of a running server share."""

from __future__ import annotations

import argparse
import json

from radiximp.cli.server_options import add_server_arguments, connected


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=int, default=10, metavar="N", help="how many (default 10)")
    add_server_arguments(parser)


def run(args: argparse.Namespace) -> int:
    with connected(args) as client:
        answer = client.hotspots(args.limit)
    if args.json:
        print(json.dumps(answer))
        return 0
    from rich.console import Console

    from radiximp.replay.table import simple_table

    table = simple_table(["rank", "tier", "tokens", "requests", "sessions", "density", "idle s"])
    for rank in answer["ranks"]:
        for node in rank["hotspots"]:
            tier = "device" if node["is_on_device"] else "host"
            numbers = [f"{node[name]:,}" for name in ("tokens", "queries", "sessions")]
            place = str(rank["dp_rank"]), tier
            table.add_row(*place, *numbers, f"{node['importance']:.2f}", f"{node['age_s']:.0f}")
    Console().print(table)
    return 0
