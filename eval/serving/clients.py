"""Users who hold sessions: each thinks, asks, reads the answer as it comes, and asks again."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from typing import Any

import httpx

from eval.serving.traffic import Seen, Session

NUM_OUTPUT_TOKENS = 6
# Entries of a request in a result row.
FIELDS = (
    "session",
    "turn",
    "ttft_s",
    "tpot_s",
    "prompt_tokens",
    "device_tokens",
    "host_tokens",
    "lost_tokens",
)


def played(
    url: str, sessions: list[Session], num_users: int, think_factor: float = 1.0
) -> tuple[list[list[float]], float]:
    """(a list of FIELDS a request, seconds in all). Users take the next session when theirs has ended."""
    waiting, rows, seen, lock = deque(sessions), [], Seen(), threading.Lock()
    errors: list[BaseException] = []

    def user() -> None:
        try:
            with httpx.Client(base_url=url, timeout=300, trust_env=False) as http:
                while waiting and not errors:
                    try:
                        session = waiting.popleft()
                    except IndexError:  # another user took it
                        return
                    for turn, (prompt, think_s) in enumerate(
                        zip(session.prompts, session.think_s, strict=True)
                    ):
                        time.sleep(think_s * think_factor)
                        with lock:
                            known = seen.known_tokens(prompt, session.salt)
                        told = ask(http, prompt, session.salt)
                        lost = max(0, known - told["device"] - told["host"])
                        with lock:
                            seen.add(prompt, session.salt)
                            rows.append([session.number, turn, round(told["ttft_s"], 4), round(told["tpot_s"], 4), len(prompt),
                                         told["device"], told["host"], lost])  # fmt: skip
        except BaseException as error:
            errors.append(error)
            raise

    started = time.monotonic()
    users = [threading.Thread(target=user) for _ in range(num_users)]
    for one in users:
        one.start()
    for one in users:
        one.join()
    if errors:
        raise errors[0]
    return sorted(rows), time.monotonic() - started


def ask(http: httpx.Client, prompt: list[int], salt: str | None) -> dict[str, Any]:
    """One streamed answer: seconds to its first token, mean seconds between the others, cached tokens by tier."""
    sampling = {"temperature": 0, "max_new_tokens": NUM_OUTPUT_TOKENS, "ignore_eos": True}
    body = {"input_ids": prompt, "sampling_params": sampling, "stream": True} | (
        {"cache_salt": salt} if salt else {}
    )
    started, first, last, meta = time.perf_counter(), None, None, {}
    with http.stream("POST", "/generate", json=body) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                last = time.perf_counter()
                first = first or last
                meta = json.loads(line[6:])["meta_info"]
    if first is None:
        raise RuntimeError("the stream ended without a token")
    details = meta.get("cached_tokens_details") or {"device": meta["cached_tokens"]}
    tpot_s = (last - first) / max(1, meta["completion_tokens"] - 1)
    return {
        "ttft_s": first - started,
        "tpot_s": tpot_s,
        "device": details.get("device", 0),
        "host": details.get("host", 0),
    }
