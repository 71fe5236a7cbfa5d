"""`radiximp prewarm FILE.jsonl`: have known prompts prefilled by a running server, and wait until they are."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from radiximp.cli import CommandError
from radiximp.cli.server_options import (
    add_namespace_arguments,
    add_server_arguments,
    connected,
    namespace_of,
    read_prompts,
)

# As many as the server takes in one call.
PROMPTS_PER_JOB = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help='one prompt a line: {"messages": …}, {"text": …} or {"input_ids": …}',
    )
    parser.add_argument(
        "--retain-s", type=float, metavar="S", help="pin them softly: kept S seconds after their last use"
    )
    parser.add_argument(
        "--tier", choices=("device", "host"), help="host: backed up there, and first to go from the device"
    )
    add_namespace_arguments(parser)
    add_server_arguments(parser)


def run(args: argparse.Namespace) -> int:
    prompts = read_prompts(args.file)
    results: list[dict] = []
    with connected(args) as client:
        for begin in range(0, len(prompts), PROMPTS_PER_JOB):
            job = prompts[begin : begin + PROMPTS_PER_JOB]
            options = {"retain_s": args.retain_s, "tier": args.tier, **namespace_of(args)}
            results += run_job(client, job, options, begin, len(prompts))
    failed = [(number, result["error"]) for number, result in enumerate(results, 1) if result["error"]]
    if args.json:
        print(json.dumps(results))
    else:
        prefilled, tokens = (
            sum(result[name] for result in results) for name in ("tokens_prefilled", "tokens")
        )
        print(
            f"{len(results) - len(failed)} of {len(prompts)} prompts are warm: {tokens:,} tokens, {prefilled:,} prefilled now"
        )
    if failed or len(results) < len(prompts):
        first = f"; prompt {failed[0][0]}: {failed[0][1]}" if failed else ""
        raise CommandError(
            f"{len(prompts) - len(results) + len(failed)} of {len(prompts)} prompts are not warm{first}"
        )
    return 0


def run_job(client, prompts: list[dict], options: dict, begin: int, total: int) -> list[dict]:
    """What became of each prompt; a bar shows how many of `total` are done, `begin` of them before this call.

    options: of `Client.prewarm`.
    """
    from rich.console import Console
    from rich.progress import Progress

    job = client.prewarm(prompts, **options)
    try:
        with Progress(console=Console(file=sys.stderr), transient=True) as progress:
            bar = progress.add_task("prompts", total=total)
            ended = client.wait_for(
                job["id"], lambda state: progress.update(bar, completed=begin + len(state["results"]))
            )
    except KeyboardInterrupt:
        client.cancel_prewarm(job["id"])
        raise
    return ended["results"]
