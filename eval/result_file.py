"""A result file that grows row by row, so that an evaluation that was cut short goes on where it stopped.

Holds the command, the settings, the environment, the rows (one a line) and what was made of them. Rows made under other
settings are refused, never mixed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import orjson

from radiximp.replay.files import FileError, write_whole
from radiximp.versions import installed_versions

RESULTS = Path(__file__).parent / "results"
_LINES = orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY


class ResultFile:
    """Rows are plain dicts; the caller says which it already has. Written whole after every row."""

    def __init__(self, path: Path | None, command: str, settings: dict[str, Any]) -> None:
        """path: None keeps the rows in memory only (a smoke run). Raises FileError for a file of other settings."""
        self.path = path
        self.document: dict[str, Any] = {"command": command, "settings": settings, "rows": []}
        if path is not None and path.exists():
            before = json.loads(path.read_bytes())
            if before["settings"] != json.loads(orjson.dumps(settings)):
                raise FileError(
                    f"{path} was made with other settings: move it away, or give the settings it has"
                )
            self.document = before
        self.document["environment"] = installed_versions() | {"cpus": os.cpu_count()}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows so far, oldest first."""
        return self.document["rows"]

    def add(self, row: dict[str, Any]) -> None:
        """Keep one more row."""
        self.rows.append(json.loads(orjson.dumps(row, option=_LINES)))
        self.write()

    def write(self, **parts: Any) -> None:
        """Set parts of the document, as its summary, and write it."""
        self.document |= parts
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, dumped(self.document))


def dumped(document: dict[str, Any]) -> bytes:
    """Indented but for the rows, of which each is one line; keys sorted."""
    head = {key: value for key, value in document.items() if key != "rows"}
    lines = b",\n    ".join(orjson.dumps(row, option=_LINES) for row in document["rows"])
    return (
        orjson.dumps(head, option=_LINES | orjson.OPT_INDENT_2)[:-2]
        + b',\n  "rows": [\n    '
        + lines
        + b"\n  ]\n}\n"
    )


def read(slug: str, name: str) -> dict[str, Any] | None:
    """A result that is in the repository; None where it has not been made."""
    path = RESULTS / slug / name
    return json.loads(path.read_bytes()) if path.exists() else None


def add_arguments(parser: argparse.ArgumentParser, path: Path) -> None:
    """--minutes, --json, --smoke."""
    parser.add_argument(
        "--minutes",
        type=float,
        default=math.inf,
        help="start nothing new after that long; the next call goes on",
    )
    parser.add_argument("--json", type=Path, default=path, help="default: %(default)s")
    parser.add_argument(
        "--smoke", action="store_true", help="under a minute, to see that it runs; writes nothing"
    )


def deadline_s(args: argparse.Namespace) -> float:
    """On the monotonic clock."""
    return time.monotonic() + 60 * args.minutes
