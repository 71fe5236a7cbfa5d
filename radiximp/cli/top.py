"""`radiximp top`: what a running server's cache does, live in a terminal, or once for scripts.

Asks for the statistics, pins, hotspots and jobs at each look; `--every-s` says how often.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from radiximp.cli import CommandError
from radiximp.cli.server_options import add_server_arguments, connected

_MAX_ROWS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--every-s", type=float, default=2.0, metavar="S", help="between two looks (default 2)"
    )
    parser.add_argument("--once", action="store_true", help="look once, print and end")
    add_server_arguments(parser)


def run(args: argparse.Namespace) -> int:
    if not 0.1 <= args.every_s <= 3600:
        raise CommandError(f"--every-s: expected 0.1 to 3600 seconds, got {args.every_s:g}")
    is_plain = args.once or args.json
    if not is_plain and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandError("needs a terminal; use --once or --json elsewhere")
    with connected(args) as client:
        try:
            return _print(client, args) if is_plain else _watch(client, args)
        except KeyboardInterrupt:
            return 0  # how one leaves it


def look(client: Any) -> dict[str, Any]:
    """All that is shown, as the server's calls answer it, and when. Raises what the client raises."""
    return {
        "time_s": time.time(),
        "stats": client.stats(),
        "pins": client.pins(),
        "hotspots": client.hotspots(_MAX_ROWS),
        "prewarm": client.prewarms(_MAX_ROWS),
    }


def _print(client: Any, args: argparse.Namespace) -> int:
    from rich.console import Console

    from radiximp.cli.top_view import screen

    # A pipe has no width; what does not fit would be cut.
    console = Console() if sys.stdout.isatty() else Console(width=140)
    before = None
    while True:
        now = look(client)
        if args.json:
            print(json.dumps(now), flush=True)
        else:
            console.print(screen(now, before, args.url))
        if args.once:
            return 0
        before = now
        time.sleep(args.every_s)


def _watch(client: Any, args: argparse.Namespace) -> int:
    import httpx
    from rich.live import Live

    from radiximp.cli.top_view import screen

    before, now, trouble = None, look(client), ""
    with _single_keys() as key_within, Live(screen=True, auto_refresh=False) as live:
        while True:
            live.update(screen(now, before, args.url, trouble), refresh=True)
            if key_within(args.every_s) in ("q", "Q", "\x1b"):
                return 0
            try:
                before, now, trouble = now, look(client), ""
            except httpx.HTTPError as error:  # a server that restarts is one to watch
                trouble = f"no answer: {error or type(error).__name__}"


@contextmanager
def _single_keys() -> Iterator[Any]:
    """A function that waits so many seconds for a key and gives what it sends, "" where none came; the terminal is as before afterwards."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    settings = termios.tcgetattr(descriptor)

    def key_within(seconds: float) -> str:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        return os.read(descriptor, 64).decode(errors="replace") if ready else ""

    try:
        tty.setcbreak(descriptor)
        yield key_within
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, settings)
