"""Requests as text, one a line: OpenAI request bodies, and the agent trace of LMCache.

A row holds `messages` (with optional `tools`), `prompt` or `input`; and optionally `output`, `timestamp`
(seconds down to nanoseconds, or ISO 8601), `session_id` or `user`, `cache_salt`.
Rows may be out of order, so the page ids of all are held: an eighth of the text at 16 tokens a page.
Rows that are whole conversations go to `conversations`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from radiximp.replay.readers import conversations, text_pages
from radiximp.replay.readers.base import Format, Options, trace_name
from radiximp.replay.readers.rows import Row, rows, shown
from radiximp.replay.readers.sessions import hours_of, session_starts, start_notes
from radiximp.replay.trace import Request, Trace, TraceError

_PROMPT_KEYS = ("messages", "prompt", "input")
# Seconds since 1970 stay below the first of these for 3,000 years, milliseconds below the second.
_FROM_MS = 1e11
_FROM_US = 1e14
_FROM_NS = 1e17
_UNTIMED_NOTE = "Arrival times are modelled: rows have none, and arrive one second apart in the file's order."
_SESSIONS_NOTE = "Within a session, requests keep the distances that they were recorded at."


def read(path: Path, options: Options) -> Trace:
    """The trace; reads the file now. Raises TraceError."""
    if any(key in next(rows(path)).fields for key in conversations.KEYS):
        return conversations.read(path, options)
    page_tokens = options.page_tokens or text_pages.DEFAULT_PAGE_TOKENS
    requests, is_timed = _loaded(path, page_tokens)
    notes = (text_pages.NOTE,) if is_timed else (text_pages.NOTE, _UNTIMED_NOTE)
    if options.sessions is not None or options.hours is not None:
        requests, start_notes_ = _restarted(path, requests, options)
        notes += (*start_notes_, _SESSIONS_NOTE)
    return Trace(trace_name(path), page_tokens, notes, lambda: iter(requests))


def _loaded(path: Path, page_tokens: int) -> tuple[list[Request], bool]:
    """(requests by arrival, the first at 0; whether the rows say when). Rows that arrive together stay in order."""
    requests: list[Request] = []
    is_timed = False
    for number, row in enumerate(rows(path)):
        recorded_s = _timestamp_s(row)
        if number == 0:
            is_timed = recorded_s is not None
        elif is_timed != (recorded_s is not None):
            raise row.error(
                "timestamp: on every row or on none", row.fields.get("timestamp", "a row that differs")
            )
        requests.append(_request(row, float(number) if recorded_s is None else recorded_s, page_tokens))
    return _in_order(requests), is_timed


def _in_order(requests: Iterable[Request]) -> list[Request]:
    ordered = sorted(requests, key=lambda request: request.arrival_s)
    first_s = ordered[0].arrival_s
    return [replace(request, arrival_s=request.arrival_s - first_s) for request in ordered]


def _restarted(
    path: Path, requests: list[Request], options: Options
) -> tuple[list[Request], tuple[str, ...]]:
    """(the chosen sessions' requests at modelled times, what was modelled)."""
    first_s: dict[str, float] = {}
    for request in requests:
        if not request.session:
            raise TraceError(
                f"{path}: expected a session_id on every row, as sessions or hours are asked for"
            )
        first_s.setdefault(request.session, request.arrival_s)
    names = list(first_s)
    starts = session_starts(range(len(names)), options)
    start_s = {names[index]: start for index, start in starts}
    moved = (
        replace(request, arrival_s=start_s[request.session] + request.arrival_s - first_s[request.session])
        for request in requests
        if request.session in start_s
    )
    end_s = hours_of(options) * 3600
    kept = sorted((r for r in moved if r.arrival_s <= end_s), key=lambda request: request.arrival_s)
    return kept, start_notes(len(names), len(starts), options)


def _request(row: Row, recorded_s: float, page_tokens: int) -> Request:
    try:
        text = _prompt(row)
    except TypeError as error:  # what can be read can be nested too deep to be written again
        raise row.error("values nested less deep", str(error)) from None
    session = row.fields.get("session_id", row.fields.get("user"))
    return Request(
        arrival_s=recorded_s,
        page_ids=text_pages.page_ids(text, page_tokens),
        num_tokens=text_pages.num_tokens_of(text),
        output_tokens=text_pages.num_tokens_of(row.text("output", "").encode()),
        session="" if session is None else str(session),
        namespace=row.text("cache_salt", ""),
    )


def _prompt(row: Row) -> bytes:
    key = next((key for key in _PROMPT_KEYS if key in row.fields), None)
    if key is None:
        raise row.error(f"one of {', '.join(_PROMPT_KEYS)}", f"a row with {', '.join(sorted(row.fields))}")
    if key != "messages":
        return row.text(key).encode()
    messages = row.fields["messages"]
    if type(messages) is not list:
        raise row.error("messages: a list", shown(messages))
    tools = text_pages.tools_text(row.fields.get("tools"))
    return tools + b"".join(text_pages.message_text(row, message) for message in messages)


def _timestamp_s(row: Row) -> float | None:
    value: Any = row.fields.get("timestamp")
    if value is None:
        return None
    if type(value) is str and not value.strip().isdigit():
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise row.error("timestamp: a number or an ISO 8601 date and time", repr(value)) from None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    number = float(value) if type(value) is str else row.number("timestamp")
    for start, per_second in ((_FROM_NS, 1e9), (_FROM_US, 1e6), (_FROM_MS, 1e3)):
        if number >= start:
            return number / per_second
    return number


def _matches(fields: dict) -> bool:
    return not fields.keys().isdisjoint((*_PROMPT_KEYS, *conversations.KEYS))


FORMAT = Format("openai-jsonl", _matches, read)
