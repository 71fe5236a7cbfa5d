"""What a reader is: a format's name, how to recognise its first row, and how to turn a file into a `Trace`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from radiximp.replay.readers.rows import Row
from radiximp.replay.trace import Trace, TraceError


@dataclass(frozen=True)
class Options:
    """What the caller of `open_trace` asked for; None leaves it to the format.

    page_tokens: tokens of a page where the format does not fix it. sessions: how many to replay.
    hours: in which their start times are spread. seed: of everything that is modelled.
    Raises TraceError for values out of range.
    """

    page_tokens: int | None = None
    sessions: int | None = None
    hours: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for key in ("page_tokens", "sessions"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise TraceError(f"{key}: expected a whole number from 1, got {value}")
        if self.hours is not None and not (math.isfinite(self.hours) and self.hours > 0):
            raise TraceError(f"hours: expected a number above 0, got {self.hours}")

    def fixed_page_tokens(self, name: str, page_tokens: int) -> int:
        """`page_tokens`, which format `name` fixes; raises TraceError where another was asked for."""
        if self.page_tokens not in (None, page_tokens):
            raise TraceError(f"page_tokens: expected {page_tokens} for {name}, got {self.page_tokens}")
        return page_tokens

    def refuse_sessions(self, name: str) -> None:
        """Raises TraceError where start times were to be modelled, but format `name` records them."""
        if self.sessions is not None or self.hours is not None:
            raise TraceError(f"sessions, hours: expected none for {name}, which records when requests arrive")


@dataclass(frozen=True)
class Format:
    """One file format. `matches` sees the first row's fields; `read` opens the file, not empty, as a Trace."""

    name: str
    matches: Callable[[dict], bool]
    read: Callable[[Path, Options], Trace]


def trace_name(path: Path) -> str:
    """The file's name without what says how it is stored: `a/b.jsonl.gz` is "b"."""
    name = path.name
    for ending in (".gz", ".jsonl", ".json"):
        name = name.removesuffix(ending)
    return name


def of_row(first: Row, formats: dict[str, Format]) -> Format:
    """The first of `formats` that recognises a file's first row; raises TraceError that lists them all."""
    for candidate in formats.values():
        if candidate.matches(first.fields):
            return candidate
    keys = ", ".join(sorted(first.fields)) or "no keys"
    raise first.error(f"the first row of one of {', '.join(formats)}", f"a row with {keys}")
