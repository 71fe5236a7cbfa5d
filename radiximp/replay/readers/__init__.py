"""Trace files, one reader a format. A new format is one file beside these and one entry in `FORMATS`."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from radiximp.replay.readers import base, mooncake, openai_jsonl, record, weka
from radiximp.replay.readers.record import write_trace
from radiximp.replay.readers.rows import rows
from radiximp.replay.trace import Trace, TraceError

__all__ = ["FORMATS", "open_trace", "write_trace"]

# Asked in this order when the format is to be told from the first row.
FORMATS: dict[str, base.Format] = {
    reader.FORMAT.name: reader.FORMAT for reader in (mooncake, weka, record, openai_jsonl)
}


def open_trace(
    path: str | PathLike[str],
    format: str = "auto",
    *,
    page_tokens: int | None = None,
    sessions: int | None = None,
    hours: float | None = None,
    seed: int = 0,
) -> Trace:
    """The trace in a file, plain or gzip; `auto` tells the format by the keys of the first row.

    page_tokens: for text, whose pages are ours to choose; 16 if None. sessions, hours: for sessions whose start
    times are modelled, how many (None: all) and over how many hours (None: 4). The same seed gives the same trace.
    Raises TraceError, here or while it is iterated, and OSError.
    """
    path = Path(path)
    if format != "auto" and format not in FORMATS:
        raise TraceError(f"format: expected auto, {', '.join(FORMATS)}, got {format!r}")
    options = base.Options(page_tokens, sessions, hours, seed)
    first = next(rows(path), None)
    if first is None:
        raise TraceError(f"{path}: no requests")
    chosen = base.of_row(first, FORMATS) if format == "auto" else FORMATS[format]
    return chosen.read(path, options)
