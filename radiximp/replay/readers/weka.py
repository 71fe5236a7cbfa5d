"""Coding-agent sessions of callanjfox/kv-cache-tester, re-encoded: prompts as 64-token blocks, full ones only.

A header row per session, then its requests in order; the fields are read in `_load` and `_requests`. Block ids
are local to a session, and an id always stands at one position. Three things are modelled, as the
trace's notes say: when sessions start, which of them run, and the tools and system prompt they share.

Of a session, its text and the last prompt of each of its streams are held; prompts are derived as they arrive.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from radiximp.replay.readers import runs
from radiximp.replay.readers.base import Format, Options, trace_name
from radiximp.replay.readers.rows import Row, lines, parsed
from radiximp.replay.readers.sessions import hours_of, session_starts, start_notes
from radiximp.replay.trace import Request, Trace, TraceError

PAGE_TOKENS = 64
_END_OF_LOCAL_IDS = 1 << 32  # a session's ids are (its index << 32) | local id
_MAX_PREFIX_TOKENS = 10**8
_SHARED = 1 << 62  # set in the ids of pages that several sessions share
_NOTES = (
    "Sessions with equal tool_tokens share the pages of their tools, and with equal system_tokens too those of "
    "their system prompt: the recording does not say it, equal sizes are taken for equal text.",
    "A page counts as tools or system prompt only where it stands in its session's first prompt: prompts "
    "that start otherwise, as sub-agents do, share what is recorded within the session and no more.",
    "Requests to different models are replayed against one cache.",
    "The tokens after the last full page of a prompt have no page: no later prompt can share them.",
)


@dataclass(slots=True)
class _Session:
    """One session's text. prefix: [num_pages] int64, ids of its tools and system prompt across sessions."""

    header: Row
    index: int
    prefix: np.ndarray
    texts: list[tuple[int, bytes]] = field(default_factory=list)

    def rows(self) -> Iterator[Row]:
        return (parsed(self.header.path, line, text) for line, text in self.texts)


def read(path: Path, options: Options) -> Trace:
    """The trace; reads the file once now, and derives prompts while it is iterated. Raises TraceError then too."""
    page_tokens = options.fixed_page_tokens("weka", PAGE_TOKENS)
    sessions = {session.index: session for session in _load(path)}
    if not any(session.texts for session in sessions.values()):
        raise TraceError(f"{path}: no requests")
    chosen = [(sessions[index], start_s) for index, start_s in session_starts(list(sessions), options)]
    end_s = hours_of(options) * 3600
    notes = start_notes(len(sessions), len(chosen), options) + _NOTES

    def requests() -> Iterator[Request]:
        arrivals = [_requests(session, start_s, end_s) for session, start_s in chosen]
        return heapq.merge(*arrivals, key=lambda request: request.arrival_s)

    return Trace(trace_name(path), page_tokens, notes, requests)


def _load(path: Path) -> Iterator[_Session]:
    """The sessions that are not near-duplicates of another."""
    numbers: dict[tuple[int, ...], int] = {}
    session = None
    index = -1
    for line, text in lines(path):
        row = parsed(path, line, text)
        if "session" in row.fields:
            yield from _complete(session)
            index += 1
            session = _Session(row, index, _prefix_ids(row, numbers))
        elif session is None:
            raise row.error("the header of a session", f"a row with {', '.join(sorted(row.fields))}")
        else:
            session.texts.append((line, text))
    yield from _complete(session)


def _complete(session: _Session | None) -> Iterator[_Session]:
    if session is None:
        return
    row = session.header
    if row.integer("requests") != len(session.texts):
        raise row.error(f"requests: {row.integer('requests')} rows after it", f"{len(session.texts)}")
    if not row.fields.get("near_duplicate"):
        yield session


def _prefix_ids(header: Row, numbers: dict[tuple[int, ...], int]) -> np.ndarray:
    """[num_pages] int64: pages wholly within the tools go by tool_tokens, the others by both sizes.

    `numbers` counts the sizes as they are first seen in the file, whichever sessions are chosen later.
    """
    tools, system = header.integer("tool_tokens"), header.integer("system_tokens")
    for key, num_tokens in (("tool_tokens", tools), ("system_tokens", system)):
        if num_tokens > _MAX_PREFIX_TOKENS:
            raise header.error(f"{key}: at most {_MAX_PREFIX_TOKENS}", num_tokens)
    num_tool_pages, num_pages = tools // PAGE_TOKENS, (tools + system) // PAGE_TOKENS
    ids = np.arange(num_pages, dtype=np.int64) | _SHARED
    ids[:num_tool_pages] |= numbers.setdefault((tools,), len(numbers)) << 32
    ids[num_tool_pages:] |= numbers.setdefault((tools, system), len(numbers)) << 32
    return ids


def _requests(session: _Session, start_s: float, end_s: float) -> Iterator[Request]:
    """One session's requests up to end_s, as they arrive."""
    name = session.header.text("session")
    head = _head(session)
    streams: dict[str, np.ndarray] = {}
    latest_s = 0.0
    for row in session.rows():
        offset_s = row.number("t")
        if offset_s < latest_s:
            raise row.error(f"t: at least {latest_s:g} s, the request before", f"{offset_s:g} s")
        latest_s = offset_s
        if start_s + offset_s > end_s:
            return
        agent = row.text("agent", "")
        local = streams[agent] = _local_ids(row, streams.get(agent, runs.NO_PAGES))
        stop = row.text("stop")
        yield Request(
            arrival_s=start_s + offset_s,
            page_ids=_page_ids(session, head, local),
            num_tokens=row.integer("in"),
            output_tokens=row.integer("out"),
            service_s=row.number("api_time", None),
            finish=stop if stop in ("tool_use", "end_turn") else "",
            session=f"{name}/{agent}" if agent else name,
        )


def _local_ids(row: Row, previous: np.ndarray) -> np.ndarray:
    num_pages = row.integer("in") // PAGE_TOKENS
    return runs.expanded(row, previous, (num_pages, num_pages), _END_OF_LOCAL_IDS)


def _head(session: _Session) -> np.ndarray:
    """[num_pages] int64: the local ids of tools and system prompt, at the start of the first prompt."""
    first = next((row for row in session.rows() if not row.text("agent", "")), None)
    return runs.NO_PAGES if first is None else _local_ids(first, runs.NO_PAGES)[: len(session.prefix)]


def _page_ids(session: _Session, head: np.ndarray, local: np.ndarray) -> np.ndarray:
    """[num_pages] int64 ids across sessions: a function of the local id, so that recorded sharing stays as it is."""
    pages = local | session.index << 32
    shorter = min(len(head), len(local))
    is_shared = local[:shorter] == head[:shorter]
    pages[:shorter][is_shared] = session.prefix[:shorter][is_shared]
    return pages


FORMAT = Format("weka", lambda fields: {"session", "tool_tokens"} <= fields.keys(), read)
