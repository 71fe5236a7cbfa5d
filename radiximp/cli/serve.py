"""`radiximp serve`: run SGLang with the hierarchical cache and this package's eviction policy.

It checks what would otherwise fail after a long start, prints the command and becomes it (exec), so that
signals reach the server itself.
"""

from __future__ import annotations

import argparse
import os
import shlex
import socket
import sys
from pathlib import Path

from radiximp.cli import CommandError
from radiximp.serving import artifact, default_model

DEFAULT_PORT = 30000
POLICY = "importance"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, help="model folder; a small one is used where there is no GPU")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="port to listen on (default %(default)s)")
    parser.add_argument("--policy", default=POLICY, help="radix eviction policy (default %(default)s)")
    parser.add_argument(
        "flags", nargs="*", metavar="-- FLAG", help="further flags of sglang.launch_server, after `--`"
    )


def run(args: argparse.Namespace) -> int:
    """Replaces this process by the server; returns only by raising `CommandError`."""
    check_port(args.host, args.port)
    if args.model is None and has_gpu():
        raise CommandError("there is a GPU here, so name the model to serve: MODEL=/path/to/model or --model")
    model = check_model(args.model) if args.model is not None else prepare_default_model()
    command = server_command(model, args.host, args.port, args.policy, args.flags)
    print(f"radiximp serve: {shlex.join(command)}", file=sys.stderr, flush=True)
    os.execv(command[0], command)


def server_command(model: Path, host: str, port: int, policy: str, flags: list[str]) -> list[str]:
    """The command line; a flag in `flags` stands last and so wins over the same one before it."""
    return [
        *(sys.executable, "-m", "sglang.launch_server", "--model-path", str(model)),
        *("--host", host, "--port", str(port)),
        *("--enable-hierarchical-cache", "--radix-eviction-policy", policy),
        *flags,
    ]


def check_port(host: str, port: int) -> None:
    """Raise `CommandError` unless the server could listen there."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CommandError(f"cannot listen on {host}:{port} ({reason}); choose another PORT=") from error


def check_model(model: Path) -> Path:
    """`model` if it is a model folder; raises `CommandError` otherwise."""
    if not model.is_dir():
        raise CommandError(f"model folder {model} does not exist")
    if not (model / "config.json").is_file():
        raise CommandError(f"model folder {model} has no config.json")
    return model


def prepare_default_model() -> Path:
    try:
        return default_model.prepare(lambda line: print(f"radiximp serve: {line}", file=sys.stderr, flush=True))
    except artifact.ArtifactError as error:
        raise CommandError(str(error)) from error


def has_gpu() -> bool:
    """True if torch finds an accelerator. Imports torch."""
    from radiximp.serving import accelerator

    return accelerator.find() is not None
