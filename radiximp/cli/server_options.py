"""What the commands share that talk to a running server."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from radiximp.cli import CommandError

DEFAULT_URL = "http://127.0.0.1:30000"


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the server is and what it lets us do."""
    parser.add_argument("--url", default=DEFAULT_URL, help=f"the server (default {DEFAULT_URL})")
    parser.add_argument(
        "--api-key",
        default=os.environ.get("RADIXIMP_API_KEY"),
        help="its (admin) key; default: the environment's RADIXIMP_API_KEY",
    )
    parser.add_argument("--json", action="store_true", help="print the server's answer as JSON")


def add_namespace_arguments(parser: argparse.ArgumentParser) -> None:
    """Whose prompts they are."""
    parser.add_argument("--cache-salt", help="the tenant's salt, as its requests carry it")
    parser.add_argument("--extra-key", help="the tenant's extra_key")
    parser.add_argument("--lora-path", help="the adapter, by the name that requests give")


def namespace_of(args: argparse.Namespace) -> dict[str, str | None]:
    """As the client's calls take it."""
    return {"cache_salt": args.cache_salt, "extra_key": args.extra_key, "lora_path": args.lora_path}


@contextmanager
def connected(args: argparse.Namespace) -> Iterator[Any]:
    """A client; what goes wrong is one line."""
    try:
        import httpx

        from radiximp.client import ApiError, Client
    except ModuleNotFoundError:
        raise CommandError("needs httpx: pip install 'radiximp[client]'") from None
    try:
        with Client(args.url, args.api_key) as client:
            yield client
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise CommandError(f"--url: expected http://host:port, got {args.url!r}: {error}") from None
    except httpx.HTTPError as error:
        raise CommandError(f"{args.url}: {error or type(error).__name__}; is the server up?") from None
    except ApiError as error:
        raise CommandError(f"{args.url} answered {error}") from None


def read_prompts(path: Path) -> list[dict]:
    """One prompt a line: {"messages": ...}, {"text": ...} or {"input_ids": ...}. The server checks the rest."""
    prompts = []
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            prompt = json.loads(line)
        except json.JSONDecodeError as error:
            raise CommandError(f"{path}:{number}: expected a JSON object, got {error}") from None
        if not isinstance(prompt, dict):
            raise CommandError(f"{path}:{number}: expected a JSON object, got {line[:40]}")
        prompts.append(prompt)
    if not prompts:
        raise CommandError(f"{path}: no prompts; expected one JSON object a line")
    return prompts
