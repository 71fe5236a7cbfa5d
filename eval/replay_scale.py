"""Does a replay of a large trace take minutes and little memory? 50,000 requests of 100,000 tokens by default.

    python -m eval.replay_scale --json eval/results/replay_scale/cpu.json

Writes a synthetic trace of agents (a shared head, sessions whose prompts grow, arrivals interleaved) in our record
format, replays it with the command a user types, and notes each row's seconds and the peak memory of any process.
"""

from __future__ import annotations

import argparse
import heapq
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orjson

from radiximp.replay.files import write_json
from radiximp.replay.readers import write_trace
from radiximp.replay.trace import Request, Trace

PAGE_TOKENS = 64
TURNS = 20
HEAD_PAGES = 128
HOURS = 10


def session(index: int, seed: int, num_pages: int) -> Iterator[Request]:
    """A session's requests: the shared head, then its own pages, a few more at each turn."""
    generator = random.Random(f"{seed}/{index}")
    arrival_s = generator.random() * HOURS * 3600
    # Hashes, as content gives them: in a file nothing is shorter than its digits.
    own = np.random.default_rng([seed, index]).integers(HEAD_PAGES, 1 << 62, num_pages + 16 * TURNS)
    pages = np.concatenate([np.arange(HEAD_PAGES), own])
    used = num_pages - 8 * TURNS
    for turn in range(TURNS):
        used += generator.randint(1, 16)
        yield Request(
            arrival_s=arrival_s,
            page_ids=pages[:used],
            num_tokens=used * PAGE_TOKENS,
            output_tokens=generator.randint(20, 900),
            finish="end_turn" if turn % 4 == 3 else "tool_use",
            session=str(index),
        )
        arrival_s += generator.lognormvariate(2.8, 1.2)


def trace(num_requests: int, prompt_tokens: int, seed: int) -> Trace:
    """Sessions from the seed alone, their requests by arrival."""
    num_pages = prompt_tokens // PAGE_TOKENS

    def requests() -> Iterator[Request]:
        sessions = (session(index, seed, num_pages) for index in range(num_requests // TURNS))
        return heapq.merge(*sessions, key=lambda request: request.arrival_s)

    notes = ("Synthetic: agents with a shared head and growing prompts.",)
    return Trace("synthetic", PAGE_TOKENS, notes, requests)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--prompt-tokens", type=int, default=100_000)
    parser.add_argument("--capacity", default="1%,5%")
    parser.add_argument("--policy", default="lru,importance")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        path, result = Path(folder, "trace.jsonl.gz"), Path(folder, "rows.json")
        write_trace(trace(args.requests, args.prompt_tokens, args.seed), path)
        command = [
            "replay",
            str(path),
            "--policy",
            args.policy,
            "--capacity",
            args.capacity,
            "--json",
            str(result),
        ]
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "radiximp.cli", *command], check=True)
        seconds = time.perf_counter() - started
        rows = orjson.loads(result.read_bytes())["rows"]
    peak_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(f"{seconds:.0f} s in all, {peak_bytes / 2**30:.2f} GiB at most")
    for row in rows:
        print(f"{row['policy']:12} {row['capacity_tokens']:>12,} tokens {row['seconds']:>7.1f} s")
    if args.json:
        kept = ("requests", "prompt_tokens", "capacity", "policy", "seed")
        options = {key: getattr(args, key) for key in kept}
        write_json(args.json, {**options, "rows": rows, "seconds": seconds, "peak_bytes": peak_bytes})
    return 0


if __name__ == "__main__":
    sys.exit(main())
