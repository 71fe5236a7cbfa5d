"""Small generated traces for the tests of replay and tune."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import orjson
import pytest

from radiximp.replay.readers import write_trace
from radiximp.replay.trace import Request, Trace

PAGE_TOKENS = 16


def agents(num_sessions: int = 12, num_turns: int = 6, seed: int = 0, name: str = "agents") -> Trace:
    """Sessions that share a head of 4 pages and grow by 3 pages a turn, with one-shot prompts between them."""
    generator = random.Random(seed)
    requests = []
    for session in range(num_sessions):
        arrival_s = generator.uniform(0, 600)
        for turn in range(num_turns):
            own = np.arange(4 + 3 * turn, dtype=np.int64) + 1000 * (session + 1)
            pages = np.concatenate([np.arange(4, dtype=np.int64), own])
            requests.append(Request(arrival_s, pages, len(pages) * PAGE_TOKENS, 20, session=str(session)))
            arrival_s += generator.uniform(1, 60)
            once = np.arange(5, dtype=np.int64) + 10**6 + 10 * len(requests)
            requests.append(Request(arrival_s, once, 5 * PAGE_TOKENS, 20, session=f"once {len(requests)}"))
    requests.sort(key=lambda request: request.arrival_s)
    return Trace(name, PAGE_TOKENS, ("Generated.",), lambda: iter(requests))


def bodies(num_sessions: int = 8, num_turns: int = 5) -> list[dict]:
    """OpenAI request bodies, timed, of conversations that share a system prompt."""
    system = {"role": "system", "content": "You are a helpful assistant. " * 20}
    found = []
    for turn in range(num_turns):
        for session in range(num_sessions):
            said = [
                {"role": "user", "content": f"Question {n} of {session}: " + "why? " * 60}
                for n in range(turn + 1)
            ]
            found.append(
                {"timestamp": 60 * turn + session, "session_id": str(session), "messages": [system, *said]}
            )
    return found


def written(trace: Trace, path: Path) -> Path:
    write_trace(trace, path)
    return path


def rows_of(path: Path, rows: list[dict]) -> Path:
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


def error_line(capsys: pytest.CaptureFixture[str], main: Callable[[list[str]], int], argv: list) -> str:
    """What a failing command printed: exactly one line, exit code 2, nothing on stdout."""
    assert main([str(arg) for arg in argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err.rstrip("\n")
