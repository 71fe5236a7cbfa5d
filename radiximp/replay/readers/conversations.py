"""Whole conversations without times, one a row: tau-bench (`traj`), SWE-agent (`history`), MT-bench (`turns`).

Each turn of the assistant becomes one request whose prompt is everything before it. When conversations
start, and how long the user or the tool takes between turns, is modelled from the seed.
Called by `openai_jsonl`. The rows are held in memory; prompts are built as they arrive.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator
from pathlib import Path
from statistics import NormalDist
from typing import Any

from radiximp.replay.readers import text_pages
from radiximp.replay.readers.base import Options, trace_name
from radiximp.replay.readers.rows import Row, rows, shown
from radiximp.replay.readers.sessions import hours_of, session_starts, start_notes
from radiximp.replay.trace import Request, Trace, TraceError

KEYS = ("traj", "history", "turns")
# From one request of a conversation to its next. Median and spread are those of weka's main agents.
_MEDIAN_GAP_S = 17.0
_LOG_GAP_DEVIATION = 1.2
_NOTES = (
    text_pages.NOTE,
    f"Gaps between the turns of a conversation are modelled: lognormal, median {_MEDIAN_GAP_S:g} s, "
    f"deviation of the logarithm {_LOG_GAP_DEVIATION:g}.",
)
_TURNS_NOTE = "Of MT-bench only the questions are known: prompts lack the answers to the questions before."


def read(path: Path, options: Options) -> Trace:
    """The trace; reads the file now. Raises TraceError."""
    page_tokens = options.page_tokens or text_pages.DEFAULT_PAGE_TOKENS
    found = dict(enumerate(rows(path)))
    if not any(next(_prompts(row), None) for row in found.values()):
        raise TraceError(f"{path}: no requests")
    chosen = session_starts(list(found), options)
    end_s = hours_of(options) * 3600

    def requests() -> Iterator[Request]:
        arrivals = [
            _requests(found[index], index, start_s, end_s, page_tokens, options.seed)
            for index, start_s in chosen
        ]
        return heapq.merge(*arrivals, key=lambda request: request.arrival_s)

    notes = start_notes(len(found), len(chosen), options) + _NOTES
    if any("turns" in row.fields for row in found.values()):
        notes += (_TURNS_NOTE,)
    return Trace(trace_name(path), page_tokens, notes, requests)


def _requests(
    row: Row, index: int, start_s: float, end_s: float, page_tokens: int, seed: int
) -> Iterator[Request]:
    gaps_s = _gaps_s(seed, index)
    arrival_s = start_s
    for prompt, answer, finish in _prompts(row):
        if arrival_s > end_s:
            return
        yield Request(
            arrival_s=arrival_s,
            page_ids=text_pages.page_ids(prompt, page_tokens),
            num_tokens=text_pages.num_tokens_of(prompt),
            output_tokens=text_pages.num_tokens_of(answer),
            finish=finish,
            session=str(index),
        )
        arrival_s += next(gaps_s)


def _gaps_s(seed: int, index: int) -> Iterator[float]:
    generator = random.Random(f"{seed}/{index}/gaps")
    while True:
        share = min(max(generator.random(), 1e-9), 1 - 1e-9)
        yield math.exp(math.log(_MEDIAN_GAP_S) + _LOG_GAP_DEVIATION * NormalDist().inv_cdf(share))


def _prompts(row: Row) -> Iterator[tuple[bytes, bytes, str]]:
    """(prompt, answer, finish) of each turn; the answer is empty where it is unknown. Raises TraceError."""
    key = next((key for key in KEYS if key in row.fields), None)
    turns = row.fields.get(key)
    if type(turns) is not list:
        raise row.error(f"{', '.join(KEYS)}: a list of messages or questions", shown(turns))
    prompt = text_pages.tools_text(row.fields.get("tools"))
    for turn in turns:
        message = _message(row, turn) if key == "turns" else turn
        text = text_pages.message_text(row, message)
        if key == "turns":
            prompt += text
            yield prompt, b"", ""
            continue
        if message["role"] == "assistant" and prompt:
            yield prompt, text, "tool_use" if message.get("tool_calls") else "end_turn"
        prompt += text


def _message(row: Row, question: Any) -> dict[str, Any]:
    if type(question) is not str:
        raise row.error("turns: a list of strings", shown(question))
    return {"role": "user", "content": question}
