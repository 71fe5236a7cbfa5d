"""`radiximp hotspots show|export|import`: the prefixes that many sessions of a running server share, and their file."""

from __future__ import annotations

import argparse
import json
from itertools import groupby
from pathlib import Path

import orjson

from radiximp.cli import CommandError
from radiximp.cli.prewarm import PROMPTS_PER_JOB, run_job
from radiximp.cli.server_options import add_server_arguments, connected
from radiximp.prewarm import manifest
from radiximp.replay.files import FileError, check_writable, write_whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        nargs="?",
        choices=("show", "export", "import"),
        default="show",
        help="show (the default): list them; export: write them with their prompts; import: have them prefilled",
    )
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="of export and import")
    parser.add_argument("--limit", type=int, default=10, metavar="N", help="show: how many (default 10)")
    add_server_arguments(parser)


def run(args: argparse.Namespace) -> int:
    if (args.file is None) != (args.action == "show"):
        wanted = "no FILE" if args.action == "show" else "a FILE"
        raise CommandError(f"hotspots {args.action}: expected {wanted}")
    return {"show": _show, "export": _export, "import": _import}[args.action](args)


def _export(args: argparse.Namespace) -> int:
    try:
        check_writable(args.file)
        with connected(args) as client:
            content = client.export_hotspots()
        write_whole(args.file, orjson.dumps(content), mode=0o600)
    except FileError as error:
        raise CommandError(str(error)) from None
    entries = content["content"]["entries"]
    num_tokens = sum(len(entry["input_ids"]) for entry in entries)
    if args.json:
        print(json.dumps({"file": str(args.file), "prompts": len(entries), "tokens": num_tokens}))
    else:
        print(f"{args.file}: {len(entries)} prompts, {num_tokens:,} tokens; readable by you only")
    return 0


def _import(args: argparse.Namespace) -> int:
    try:
        data = args.file.read_bytes()
    except OSError as error:
        raise CommandError(f"{args.file}: {error.strerror}") from None
    results: list[dict] = []
    with connected(args) as client:
        try:
            entries = manifest.load(data, client.hotspots(limit=1)["fingerprint"])
        except manifest.ManifestError as error:
            raise CommandError(f"{args.file}: {error}") from None
        jobs = _jobs(entries)
        for job in jobs:
            prompts = [{"input_ids": entry.input_ids} for entry in job]
            extra_key, cache_salt, lora = job[0].namespace
            namespace = {"extra_key": extra_key, "cache_salt": cache_salt, "lora_path": lora}
            results += run_job(client, prompts, namespace, len(results), len(entries))
    warm = [result for result in results if not result["error"]]
    if args.json:
        print(json.dumps(results))
    else:
        prefilled = sum(result["tokens_prefilled"] for result in warm)
        print(f"{len(warm)} of {len(entries)} prompts are warm, {prefilled:,} tokens prefilled now")
    if len(warm) < len(entries):
        error = next((result["error"] for result in results if result["error"]), "the server was interrupted")
        raise CommandError(f"{len(entries) - len(warm)} of {len(entries)} prompts are not warm: {error}")
    return 0


def _jobs(entries: list[manifest.Entry]) -> list[list[manifest.Entry]]:
    """As many calls as tenants follow each other, so that the most valuable prompts stay first."""
    jobs = []
    for _, group in groupby(entries, key=lambda entry: entry.namespace):
        tenant = list(group)
        jobs += [tenant[begin : begin + PROMPTS_PER_JOB] for begin in range(0, len(tenant), PROMPTS_PER_JOB)]
    return jobs


def _show(args: argparse.Namespace) -> int:
    with connected(args) as client:
        answer = client.hotspots(args.limit)
    if args.json:
        print(json.dumps(answer))
        return 0
    from rich.console import Console

    from radiximp.replay.table import simple_table

    table = simple_table(["rank", "tokens", "device", "host", "requests", "sessions", "density", "idle s"])
    for rank in answer["ranks"]:
        for found in rank["hotspots"]:
            names = ("tokens", "tokens_on_device", "tokens_on_host", "queries", "sessions")
            numbers = [f"{found[name]:,}" for name in names]
            table.add_row(
                str(rank["dp_rank"]), *numbers, f"{found['importance']:.2f}", f"{found['age_s']:.0f}"
            )
    Console().print(table)
    if not any(rank["hotspots"] for rank in answer["ranks"]):
        print(
            "no hotspots yet: a prefix is one once three sessions used it, of enough requests (hotspot_queries)"
        )
    return 0
