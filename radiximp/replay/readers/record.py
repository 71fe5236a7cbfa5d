"""Our own record of a trace: lossless, versioned, streamed both ways; plain or gzip.

The first line is `{"radiximp_trace": 1, "page_tokens": P, "name": "...", "notes": [...]}`. Then one request a line:

    {"t": 1.5, "tokens": 70, "keep": 2, "new": [7, [20, 3]], "out": 9, "service_s": 2.5,
     "finish": "end_turn", "session": "a", "namespace": ""}

t: arrival in seconds, never decreasing. tokens: of the prompt. Its pages are the first `keep` page ids of the
request before it in the same namespace and session, then `new`: an id, or `[first id, count]` for consecutive ones;
as many as `tokens` fill, the last and partial one counted or not. Requests without a session keep nothing.
out, service_s, finish, session, namespace and keep may be absent where they are 0, null or "".
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterator
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson

from radiximp.policy.prefix_digest import num_agreed
from radiximp.replay.files import staged
from radiximp.replay.readers import runs
from radiximp.replay.readers.base import Format, Options
from radiximp.replay.readers.rows import Row, rows, shown
from radiximp.replay.trace import Request, Trace, TraceError

VERSION = 1
_FINISHES = ("", "tool_use", "end_turn")


def read(path: Path, options: Options) -> Trace:
    """The trace, streamed; the last prompt of each session is held. Raises TraceError, also while iterated."""
    head = list(islice(rows(path), 2))
    header = head[0]
    version = header.fields.get("radiximp_trace")
    if version != VERSION:
        raise header.error(f'a header with "radiximp_trace": {VERSION}', f"{version}")
    if len(head) == 1:
        raise TraceError(f"{path}: no requests")
    notes = header.fields.get("notes", [])
    if type(notes) is not list or not all(type(note) is str for note in notes):
        raise header.error("notes: a list of strings", shown(notes))
    page_tokens = header.integer("page_tokens")
    if page_tokens == 0:
        raise header.error("page_tokens: a whole number from 1", 0)
    options.fixed_page_tokens("this file", page_tokens)
    options.refuse_sessions("radiximp")
    return Trace(header.text("name"), page_tokens, tuple(notes), lambda: _requests(path, page_tokens))


def _requests(path: Path, page_tokens: int) -> Iterator[Request]:
    previous: dict[tuple[str, str], np.ndarray] = {}
    latest_s = 0.0
    for row in islice(rows(path), 1, None):
        arrival_s = row.number("t")
        if arrival_s < latest_s:
            raise row.error(f"t: at least {latest_s:g} s, the request before", f"{arrival_s:g} s")
        latest_s = arrival_s
        request = _request(row, arrival_s, page_tokens, previous)
        if request.session:
            previous[request.namespace, request.session] = request.page_ids
        yield request


def _request(
    row: Row, arrival_s: float, page_tokens: int, previous: dict[tuple[str, str], np.ndarray]
) -> Request:
    num_tokens = row.integer("tokens")
    session, namespace = row.text("session", ""), row.text("namespace", "")
    num_pages = _page_counts(num_tokens, page_tokens)
    finish = row.text("finish", "")
    if finish not in _FINISHES:
        raise row.error("finish: tool_use, end_turn or empty", shown(finish))
    return Request(
        arrival_s=arrival_s,
        page_ids=runs.expanded(row, previous.get((namespace, session), runs.NO_PAGES), num_pages),
        num_tokens=num_tokens,
        output_tokens=row.integer("out", 0),
        service_s=row.number("service_s", None),
        finish=finish,
        session=session,
        namespace=namespace,
    )


def write_trace(trace: Trace, path: str | PathLike[str]) -> int:
    """How many requests were written; gzip if the name ends in .gz. The file appears whole or not at all.

    Raises TraceError for a trace without requests or a request that could not be read back, and OSError.
    """
    path = Path(path)
    with staged(path) as raw:
        if path.name.endswith(".gz"):
            # neither name nor time in it: the same trace gives the same bytes
            with gzip.GzipFile("", "wb", mtime=0, fileobj=raw) as file:
                num_written = _write(trace, file)
        else:
            num_written = _write(trace, raw)
        if num_written == 0:
            raise TraceError(f"{path}: no requests")
    return num_written


def _write(trace: Trace, file: BinaryIO | gzip.GzipFile) -> int:
    header = {
        "radiximp_trace": VERSION,
        "page_tokens": trace.page_tokens,
        "name": trace.name,
        "notes": list(trace.notes),
    }
    file.write(orjson.dumps(header) + b"\n")
    num_written = 0
    for fields in _all_fields(trace):
        file.write(orjson.dumps(fields) + b"\n")
        num_written += 1
    return num_written


def _all_fields(trace: Trace) -> Iterator[dict[str, Any]]:
    previous: dict[tuple[str, str], np.ndarray] = {}
    latest_s = 0.0
    for number, request in enumerate(trace.requests(), 1):
        wrong = _wrong(request, trace.page_tokens, latest_s)
        if wrong:
            raise TraceError(f"request {number}: expected {wrong}")
        latest_s = request.arrival_s
        stream = request.namespace, request.session
        yield _fields(request, previous.get(stream, runs.NO_PAGES))
        if request.session:
            previous[stream] = request.page_ids


def _wrong(request: Request, page_tokens: int, latest_s: float) -> str:
    """Why the request could not be read back, "expected" left out; empty if it could."""
    arrival_s, service_s, pages = request.arrival_s, request.service_s, request.page_ids
    if not latest_s <= arrival_s < math.inf:
        return f"arrival_s: a finite number from {latest_s:g}, got {arrival_s}"
    if service_s is not None and not 0 <= service_s < math.inf:
        return f"service_s: a finite number from 0, got {service_s}"
    low, high = _page_counts(request.num_tokens, page_tokens)
    if not low <= len(pages) <= high:
        return f"page_ids: {low} or {high} for num_tokens {request.num_tokens}, got {len(pages)}"
    if len(pages) and pages.min() < 0:
        return f"page_ids: ids from 0, got {pages.min()}"
    if request.finish not in _FINISHES:
        return f"finish: tool_use, end_turn or empty, got {request.finish!r}"
    return ""


def _page_counts(num_tokens: int, page_tokens: int) -> tuple[int, int]:
    """(without, with) the last page if it is partial."""
    return num_tokens // page_tokens, -(-num_tokens // page_tokens)


def _fields(request: Request, previous: np.ndarray) -> dict[str, Any]:
    keep = num_agreed(request.page_ids, previous)
    optional = {
        "keep": keep,
        "out": request.output_tokens,
        "service_s": request.service_s,
        "finish": request.finish,
        "session": request.session,
        "namespace": request.namespace,
    }
    # 0.0 is a service time; only what stands for nothing is left out
    given = {
        key: value for key, value in optional.items() if value is not None and (value or key == "service_s")
    }
    return {
        "t": request.arrival_s,
        "tokens": request.num_tokens,
        "new": runs.compressed(request.page_ids[keep:]),
        **given,
    }


FORMAT = Format("radiximp", lambda fields: "radiximp_trace" in fields, read)
