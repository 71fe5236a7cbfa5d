"""`radiximp pins list|add|remove`: what a running server is asked to keep."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from radiximp.cli.server_options import (
    add_namespace_arguments,
    add_server_arguments,
    connected,
    namespace_of,
    read_prompts,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="list|add|remove", required=True)
    add_server_arguments(actions.add_parser("list", help="all pins"))
    add = actions.add_parser("add", help="pin prompts that are in the cache")
    add.add_argument(
        "file", type=Path, metavar="FILE", help="one prompt a line, as `radiximp prewarm` reads them"
    )
    add.add_argument(
        "--ttl-s", type=float, metavar="S", help="how long; a soft pin starts over with every use"
    )
    add.add_argument(
        "--hard", action="store_true", help="end at a fixed time, and never give way to other pins"
    )
    add_namespace_arguments(add)
    add_server_arguments(add)
    remove = actions.add_parser("remove", help="take a pin off")
    remove.add_argument("pin_id", metavar="PIN_ID")
    add_server_arguments(remove)


def run(args: argparse.Namespace) -> int:
    prompts = read_prompts(args.file) if args.action == "add" else []
    with connected(args) as client:
        if args.action == "list":
            answer = client.pins()
        elif args.action == "add":
            answer = client.pin(prompts, ttl_s=args.ttl_s, hard=args.hard, **namespace_of(args))
        else:
            answer = client.unpin(args.pin_id)
    print(json.dumps(answer) if args.json else _text(args.action, answer))
    return 0


def _text(action: str, answer: dict) -> str:
    if action == "remove":
        return f"removed {answer['pin_id']}"
    if action == "add":
        return (
            f"{answer['pin_id']}: {answer['tokens_pinned']:,} of {answer['tokens_requested']:,} tokens pinned"
        )
    lines = []
    for rank in answer["ranks"]:
        for pin in rank["pins"]:
            kind = "hard" if pin["hard"] else "soft"
            until = "no end" if pin["expires_in_s"] is None else f"{pin['expires_in_s']:.0f} s left"
            tokens = f"{pin['tokens_pinned']:,} of {pin['tokens_requested']:,} tokens"
            lines.append(
                f"rank {rank['dp_rank']}  {pin['pin_id']}  prompt {pin['prompt']}  {kind}  {tokens}  {until}"
            )
    return "\n".join(lines) or "no pins"
