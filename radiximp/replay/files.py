"""Result files: checked before a long run, and written whole or not at all."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import orjson


class FileError(ValueError):
    """A path that cannot be written; the message names it and says why."""


def check_writable(path: Path) -> None:
    """Raise FileError unless a file could be put there now; leaves nothing behind."""
    try:
        if path.exists() and not path.is_file():
            raise FileError(f"cannot write {path}: it is not a file")
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
            pass
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from error


@contextmanager
def staged(path: Path, is_durable: bool = True, mode: int | None = None) -> Iterator[BinaryIO]:
    """A file beside `path` to write; it takes the path's place when the block ends well, and goes when it does not.

    is_durable: wait until the content is on the disk, which can take long. mode: its permissions; None = as they
    were, or 0644.
    """
    path = path.resolve()  # a link stays, and what it names is replaced
    if mode is None:
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o644
    descriptor, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "wb") as file:
            yield file
            os.fchmod(file.fileno(), mode)
            file.flush()
            if is_durable:
                os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:  # also ^C
        os.unlink(beside)
        raise


def write_whole(path: Path, content: bytes, is_durable: bool = True, mode: int | None = None) -> None:
    """The file appears with all its content or stays as it was. Raises FileError."""
    try:
        with staged(path, is_durable, mode) as file:
            file.write(content)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from error


def write_json(path: Path, value: Any) -> None:
    """Indented, keys sorted: equal values give equal bytes."""
    write_whole(path, orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n")
