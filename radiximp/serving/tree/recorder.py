"""Writes the operation record of `record_path`: a bounded file that `radiximp replay` can hold the policy to.

Owned by the scheduler thread of one rank. What is an operation is `recording_core.py`'s; the coding is
`replay/record_format.py`'s.
"""

from __future__ import annotations

import atexit
import contextlib
import gzip
import logging
import secrets
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from sglang.srt.runtime_context import get_parallel

from radiximp.replay.record_format import KeyWriter, page_ids

logger = logging.getLogger(__name__)

_FLUSH_LINES = 512
_FLUSH_S = 1.0


class OperationRecorder:
    """note: O(1) plus the operation's prompt; a flush every second or 512 operations."""

    max_bytes = 256 << 20

    def __init__(self, path: str, header: dict[str, Any], page_tokens: int) -> None:
        self.path = rank_path(Path(path))
        self._page_tokens = page_tokens
        self._salt = secrets.randbits(64)
        self._keys = KeyWriter()
        self._namespaces: dict[tuple, int] = {}
        self._waiting: list[bytes] = []
        self._raw = self.path.open("wb")
        self._file: Any = (
            gzip.GzipFile(fileobj=self._raw, mode="wb") if self.path.suffix == ".gz" else self._raw
        )
        self._next_flush_s = 0.0
        self.is_open = True
        self._write(header)
        self.flush()
        atexit.register(self.close)
        logger.info("radiximp: recording cache operations to %s", self.path)

    def note(self, *operation: Any) -> None:
        """Write one operation."""
        if self.is_open:
            self._write(operation)

    def key(self, token_ids: np.ndarray, namespace: tuple) -> tuple[int, int, str]:
        """(namespace, block, rest) of a prompt of whole pages, to go into the next operation."""
        if not self.is_open:
            return (0, 0, "")
        if self._keys.is_full():
            self._write(("forget_blocks",))
            self._keys = KeyWriter()
        number = self._namespaces.setdefault(namespace, len(self._namespaces))
        return (number, *self._keys.encode(page_ids(token_ids, self._page_tokens, self._salt)))

    def stop(self, reason: str) -> None:
        """End the record early; what was written stays good."""
        if self.is_open:
            logger.warning("radiximp: recording to %s ends here: %s", self.path, reason)
            self._append(("stop", reason))
            self.close()

    def flush(self) -> None:
        """Hand everything written so far to the operating system."""
        if not self.is_open:
            return
        try:
            self._file.write(b"".join(self._waiting))
            self._waiting.clear()
            if self._file is not self._raw:
                self._file.flush(zlib.Z_SYNC_FLUSH)
            self._raw.flush()
        except OSError as error:  # a full disk ends the record, not the server
            logger.error(
                "radiximp: recording ends here: cannot write %s: %s; the server goes on",
                self.path,
                error.strerror,
            )
            self._abandon()

    def close(self) -> None:
        """Flush and close; no effect the second time."""
        self.flush()
        if self.is_open:
            self._abandon()

    def _abandon(self) -> None:
        self.is_open = False
        self._waiting.clear()
        atexit.unregister(self.close)
        for file in (self._file, self._raw):
            with contextlib.suppress(OSError):  # what cannot be written was told, or was flushed before
                file.close()

    def _append(self, line: Any) -> None:
        self._waiting.append(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def _write(self, line: Any) -> None:
        self._append(line)
        now_s = time.monotonic()
        if len(self._waiting) >= _FLUSH_LINES or now_s >= self._next_flush_s:
            self._next_flush_s = now_s + _FLUSH_S
            self.flush()
            if self.is_open and self._raw.tell() > self.max_bytes:
                self.stop(f"it has reached {self.max_bytes >> 20} MiB")


def rank_path(path: Path) -> Path:
    """The file of this process's rank: `ops.jsonl.gz` is `ops-dp0-tp1.jsonl.gz` where there are several."""
    try:
        parallel = get_parallel()
        ranks = {
            name: (getattr(parallel, f"{name}_rank"), getattr(parallel, f"{name}_size"))
            for name in ("dp", "pp", "tp")
        }
    except (ValueError, RuntimeError, AttributeError):  # no server in this process
        return path
    suffix = "".join(f"-{name}{rank or 0}" for name, (rank, num_ranks) in ranks.items() if num_ranks > 1)
    stem, dot, rest = path.name.partition(".")
    return path.with_name(stem + suffix + dot + rest)
