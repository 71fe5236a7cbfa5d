"""The `radiximp` command: one module per subcommand, imported only when it is named."""

from __future__ import annotations

import argparse
import importlib
import os
import sys

from radiximp import __version__

# name -> one-line help; the module radiximp.cli.<name> has add_arguments(parser) and run(args) -> int
COMMANDS = {
    "serve": "run SGLang with the hierarchical cache and the importance policy",
    "patch": "check, apply or revert the optional patches to the installed SGLang",
    "replay": "what would each policy have found in the cache, on a trace of your requests",
    "tune": "how much memory pays off on a trace of your requests, and is a setting worth changing",
    "breakeven": "from which context on is fetching cached KV faster than computing it again",
    "calibrate": "what fetching and computing cost on a running server, predicted and measured",
    "prewarm": "have known prompts prefilled by a running server",
    "pins": "list, add or remove what a running server is asked to keep",
    "hotspots": "the prefixes that many sessions of a running server share, and their file",
    "top": "what a running server's cache does, live in a terminal",
    "doctor": "is the policy on in every process of a running server, and what keeps it from doing its work",
    "bundle": "write a bug report of a running server to a file, secrets removed",
    "model": "prepare the small default model and print its path",
}


class CommandError(Exception):
    """A failure the user can act on: printed as one line, exit code 2."""


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand; returns its exit code (2 for a user error, 130 for ^C)."""
    parser = argparse.ArgumentParser(prog="radiximp", description="Importance-aware KV cache for SGLang.")
    parser.add_argument("--version", action="version", version=__version__)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, help_text in COMMANDS.items():
        subparsers.add_parser(name, help=help_text, add_help=False)
    args, rest = parser.parse_known_args(argv)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # a terminal that knows ASCII only

    try:
        module = importlib.import_module(f"radiximp.cli.{args.command}")
        command_parser = argparse.ArgumentParser(
            prog=f"radiximp {args.command}", description=COMMANDS[args.command]
        )
        module.add_arguments(command_parser)
        code = module.run(command_parser.parse_args(rest))
        sys.stdout.flush()
        return code
    except OSError as error:
        if error.filename is not None:
            raise
        # Only what is printed has no name. The rest in the buffer would fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"radiximp {args.command}: cannot write to stdout: {error.strerror}", file=sys.stderr)
        return 2
    except CommandError as error:
        print(f"radiximp {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"radiximp {args.command}: interrupted", file=sys.stderr)
        return 130
