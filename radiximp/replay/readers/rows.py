"""Rows of a JSON-lines file, plain or gzip: streamed, and every complaint says where.

Also a file that is one JSON array, whose elements are its rows; that one is read whole.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from radiximp.replay.trace import TraceError

_GZIP_MAGIC = b"\x1f\x8b"
_PREVIEW_CHARS = 60
_REQUIRED: Any = object()


@dataclass(slots=True, frozen=True)
class Row:
    """One JSON object of a file; `line` is its 1-based line, or "item N" in a file that is one array."""

    path: Path
    line: int | str
    fields: dict[str, Any]

    def error(self, expected: str, got: object) -> TraceError:
        """The TraceError to raise: `file:line: expected ..., got ...`."""
        return TraceError(f"{self.path}:{self.line}: expected {expected}, got {got}")

    def integer(self, key: str, default: int = _REQUIRED) -> int:
        """A whole number from 0; raises TraceError otherwise, or if it is absent and has no default."""
        value = self.fields.get(key, default)
        if type(value) is not int or value < 0:
            raise self.error(f"{key}: a whole number from 0", shown(value))
        return value

    def number(self, key: str, default: float | None = _REQUIRED) -> float | None:
        """A finite number from 0; the default also stands for null. Raises TraceError."""
        value = self.fields.get(key, default)
        if value is None and default is None:
            return None
        if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
            raise self.error(f"{key}: a number from 0", shown(value))
        return value

    def text(self, key: str, default: str = _REQUIRED) -> str:
        """A string; the default also stands for null. Raises TraceError."""
        value = self.fields.get(key, default)
        if value is None and default is not _REQUIRED:
            return default
        if type(value) is not str:
            raise self.error(f"{key}: a string", shown(value))
        return value


def rows(path: Path) -> Iterator[Row]:
    """The file's rows; blank lines are passed over. Raises TraceError, and OSError if it cannot be opened."""
    source = lines(path)
    line, text = next(source, (0, b""))
    if text.lstrip().startswith(b"["):
        yield from _array(path, line, text + b"".join(rest for _, rest in source))
        return
    if text:
        yield parsed(path, line, text)
    for line, text in source:
        yield parsed(path, line, text)


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(1-based number, bytes) of every line that is not blank; gzip is told by its first bytes.

    Raises TraceError where a gzip file is damaged or ends early.
    """
    with open(path, "rb") as raw:
        file = gzip.open(raw) if raw.peek(2).startswith(_GZIP_MAGIC) else raw
        line = 0
        try:
            for line, text in enumerate(file, 1):
                if text.strip():
                    yield line, text
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise TraceError(
                f"{path}:{line + 1}: expected a whole gzip file, got one that breaks off or is "
                f"damaged here ({error})"
            ) from error


def parsed(path: Path, line: int, text: bytes) -> Row:
    """One line as a Row; raises TraceError unless it is a JSON object in UTF-8."""
    value = _loads(path, line, text)
    if type(value) is not dict:
        raise TraceError(f"{path}:{line}: expected a JSON object, got {shown(value)}")
    return Row(path, line, value)


def _array(path: Path, line: int, text: bytes) -> Iterator[Row]:
    for item, value in enumerate(_loads(path, line, text), 1):
        row = Row(path, f"item {item}", value)
        if type(value) is not dict:
            raise row.error("a JSON object", shown(value))
        yield row


def _loads(path: Path, line: int, text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        reason = str(error)
    try:
        preview = repr(text.decode().strip()[:_PREVIEW_CHARS])
    except UnicodeDecodeError as error:
        raise TraceError(
            f"{path}:{line}: expected UTF-8, got byte 0x{text[error.start]:02x} at column {error.start + 1}"
        ) from None
    raise TraceError(f"{path}:{line}: expected JSON, got {preview} ({reason})")


def shown(value: object) -> str:
    """A value as an error shows it: short, and "nothing" for a required key that is absent."""
    if value is _REQUIRED:
        return "nothing"
    text = repr(value)
    return text if len(text) <= _PREVIEW_CHARS else text[:_PREVIEW_CHARS] + "..."
