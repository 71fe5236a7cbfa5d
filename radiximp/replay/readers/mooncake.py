"""Mooncake's published traces (FAST'25): one hour of real requests, prompts as chained ids of 512-token blocks.

A row: `{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}`. The ids are
global, and the last block counts even if it is not full: block and page are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from radiximp.replay.readers.base import Format, Options, trace_name
from radiximp.replay.readers.rows import Row, rows, shown
from radiximp.replay.trace import Request, Trace

PAGE_TOKENS = 512
_MAX_DISORDER_S = 1.0


def read(path: Path, options: Options) -> Trace:
    """The trace, streamed. Raises TraceError, also while it is iterated."""
    page_tokens = options.fixed_page_tokens("mooncake", PAGE_TOKENS)
    options.refuse_sessions("mooncake")
    notes = ("A request recorded up to 1 s out of order is moved on to keep the order of the file.",)
    return Trace(trace_name(path), page_tokens, notes, lambda: _requests(path))


def _requests(path: Path) -> Iterator[Request]:
    start_s = latest_s = None
    for row in rows(path):
        recorded_s = row.number("timestamp") / 1000
        if start_s is None:
            start_s = latest_s = recorded_s
        if recorded_s < latest_s - _MAX_DISORDER_S:
            raise row.error(
                f"timestamp: at most 1 s before the latest, {latest_s * 1000:g} ms",
                f"{recorded_s * 1000:g} ms",
            )
        latest_s = max(latest_s, recorded_s)
        num_tokens = row.integer("input_length")
        yield Request(
            arrival_s=latest_s - start_s,
            page_ids=_page_ids(row, num_tokens),
            num_tokens=num_tokens,
            output_tokens=row.integer("output_length"),
        )


def _page_ids(row: Row, num_tokens: int) -> np.ndarray:
    ids = row.fields.get("hash_ids")
    if type(ids) is not list or not all(type(page) is int and 0 <= page < 1 << 63 for page in ids):
        raise row.error("hash_ids: a list of whole numbers from 0", shown(ids))
    num_pages = -(-num_tokens // PAGE_TOKENS)
    if len(ids) != num_pages:
        raise row.error(f"hash_ids: {num_pages} ids for input_length {num_tokens}", f"{len(ids)}")
    return np.array(ids, np.int64)


FORMAT = Format("mooncake", lambda fields: {"hash_ids", "input_length"} <= fields.keys(), read)
