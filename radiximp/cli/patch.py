"""`radiximp patch`: check, apply or revert the optional patches to the installed SGLang."""

from __future__ import annotations

import argparse
from pathlib import Path

from radiximp.cli import CommandError
from radiximp.patching import Installation, PatchError, load_series, patch_directory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("check", "apply", "revert"))
    parser.add_argument("--only", metavar="NNNN", help="this patch alone, by number")
    parser.add_argument("--root", type=Path, metavar="DIR", help="site-packages folder that holds sglang")


def run(args: argparse.Namespace) -> int:
    """Print one line per patch with its state; 0 when each is cleanly applied or applicable, else 2."""
    try:
        installation = Installation(load_series(patch_directory()), args.root)
        if args.action == "check":
            statuses = installation.check()
        elif args.action == "apply":
            statuses = installation.apply(args.only)
        else:
            statuses = installation.revert(args.only)
    except PatchError as error:
        raise CommandError(str(error)) from error
    shown = [status for status in statuses if args.only in (None, status.patch.number)]
    if not shown:
        raise CommandError(f"there is no patch {args.only}")
    for status in shown:
        print(status)
    return 0 if all(status.is_clean for status in shown) else 2
