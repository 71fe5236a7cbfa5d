"""Replace several files as one step, and keep two processes from doing so at once.

Knows nothing of patches or SGLang. New content is written beside each file and renamed over it: a reader
sees the old file or the new one, and a file that an installer hard-linked into its cache is not written
through. Only a kill between two renames can leave a mixture, which `radiximp.patching` recognises.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_STAGED_SUFFIX = ".radiximp-new"


class SwapError(Exception):
    """One line that says why, and whether the files are as they were."""


@dataclass(frozen=True)
class Swap:
    """`path` holds `old` and shall hold `new`."""

    path: Path
    old: bytes
    new: bytes


def swap_all(swaps: list[Swap]) -> None:
    """Every file gets its new content, or all keep the old one and SwapError says why.

    A ^C or exit is let through, once the old files are back.
    """
    try:
        for swap in swaps:
            _stage(swap.path, swap.new)
        for swap in swaps:
            if swap.path.read_bytes() != swap.old:
                raise SwapError(f"{swap.path} was changed by another program meanwhile; nothing was changed")
        for swap in swaps:
            _commit(swap.path)
    except BaseException as error:  # also ^C: whatever stops us, no mixture may stay
        _restore(swaps)
        if isinstance(error, OSError):
            place = error.filename or swaps[0].path.parent
            raise SwapError(f"cannot write {place}: {error.strerror}; nothing was changed") from error
        raise
    finally:
        discard_staged(swap.path for swap in swaps)


def _restore(swaps: list[Swap]) -> None:
    for swap in swaps:
        try:
            if swap.path.read_bytes() == swap.new:
                _stage(swap.path, swap.old)
                _commit(swap.path)
        except OSError as error:
            raise SwapError(f"{swap.path} is changed and cannot be restored: {error.strerror}") from error


def discard_staged(paths: Iterable[Path]) -> None:
    """Remove what a killed `swap_all` prepared for `paths`. Call it under the lock."""
    for path in paths:
        _staged(path).unlink(missing_ok=True)


def _staged(path: Path) -> Path:
    # a fixed name, so that the next run overwrites what a killed one left
    return path.with_name(path.name + _STAGED_SUFFIX)


def _stage(path: Path, content: bytes) -> None:
    staged = _staged(path)
    with open(staged, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    shutil.copymode(path, staged)


def _commit(path: Path) -> None:
    os.replace(_staged(path), path)
    # A .pyc is checked by time and length only (or not at all), so an old one could outlive its source.
    for bytecode in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        bytecode.unlink(missing_ok=True)


@contextmanager
def exclusive(lock_path: Path) -> Iterator[None]:
    """Hold `lock_path` as the only process; raises SwapError at once when another one does.

    The kernel frees the lock when its holder dies. The file is removed at the end.
    """
    while True:
        try:
            descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise SwapError(f"cannot write in {lock_path.parent}: {error.strerror}") from error
        try:
            _flock(descriptor, fcntl.LOCK_EX, lock_path)
            # The former holder may have removed the file between our open and our lock.
            if _is_open_at(descriptor, lock_path):
                try:
                    yield
                finally:
                    lock_path.unlink(missing_ok=True)
                return
        finally:
            os.close(descriptor)


@contextmanager
def shared(lock_path: Path) -> Iterator[None]:
    """Hold off `exclusive` while reading; writes nothing, so it also works where nothing can be written."""
    try:
        descriptor = os.open(lock_path, os.O_RDONLY)
    except FileNotFoundError:
        yield
        return
    try:
        _flock(descriptor, fcntl.LOCK_SH, lock_path)
        yield
    finally:
        os.close(descriptor)


def _is_open_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _flock(descriptor: int, mode: int, lock_path: Path) -> None:
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SwapError(f"another process is patching (it holds {lock_path})") from None
