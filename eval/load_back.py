"""Proactive load-back on the real server: the share of prompt tokens that a request finds on the device, with and without.

    python -m eval.load_back [--seeds 0,1] [--sessions 6] [--gap-s 0.3] [--json FILE] [--smoke]

Agents with system prompts of their own hold sessions of several tool calls, and now and then somebody asks about a long
document once. What they ask for is larger than the device pool and smaller than the host pool. Requests come one after the
other with a pause between them, as tools take time. Each seed runs on three servers with the same pools: off, off
again (the noise) and on. The share counts what is on the device when the request is admitted; what has to
come from the host first is shown beside it. Exit code 1 where "on" is not above both others by more than these differ.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path

from radiximp.replay.files import write_json
from tests.server.server import Server, launch

DEVICE_TOKENS = 2048
NUM_AGENTS, SYSTEM_TOKENS = 5, 256
NUM_TURNS, TURN_TOKENS = 4, 40
DOCUMENT_TOKENS = 900
FLAGS = [
    *("--max-total-tokens", str(DEVICE_TOKENS), "--hicache-ratio", "6", "--max-running-requests", "2"),
    *("--chunked-prefill-size", "1024", "--log-level", "warning"),
]
CONFIG = {"hotspot_queries": 20}
ARMS = {"off": False, "off again": False, "on": True}
RESULT = Path(__file__).parent / "results" / "load_back" / "smollm2.json"


def arrivals(seed: int, num_sessions: int) -> list[tuple[float, list[int]]]:
    """(second, prompt) in order of a modelled arrival: sessions of each agent, and documents in between."""
    rng = random.Random(seed)

    def fresh(num_tokens: int) -> list[int]:
        return [rng.randrange(1000, 40_000) for _ in range(num_tokens)]

    found: list[tuple[float, list[int]]] = []
    for _ in range(NUM_AGENTS):
        system = fresh(SYSTEM_TOKENS)
        for _ in range(num_sessions):
            at_s, prompt = rng.uniform(0, 60.0 * num_sessions), [*system]
            for _ in range(NUM_TURNS):
                prompt = prompt + fresh(TURN_TOKENS)
                found.append((at_s, prompt))
                at_s += rng.lognormvariate(2.5, 0.8)
    for _ in range(NUM_AGENTS * num_sessions * NUM_TURNS // 6):
        found.append((rng.uniform(0, 60.0 * num_sessions), fresh(DOCUMENT_TOKENS)))
    return sorted(found, key=lambda arrival: arrival[0])


def run(server: Server, asked: list[list[int]], gap_s: float) -> dict:
    """Shares of prompt tokens by tier, and times to first token, of one pass."""
    tiers, seconds = {"device": 0, "host": 0}, []
    for prompt in asked:
        time.sleep(gap_s)  # the tool runs, and the server idles
        started = time.monotonic()
        meta = server.generate(prompt, num_tokens=1, return_logprob=False)["meta_info"]
        seconds.append(time.monotonic() - started)
        details = meta.get("cached_tokens_details") or {"device": meta["cached_tokens"]}
        for tier in tiers:
            tiers[tier] += details.get(tier, 0)
    (rank,) = server.get("/radiximp/stats").json()["ranks"]
    num_tokens = sum(map(len, asked))
    return {
        "device_share": tiers["device"] / num_tokens,
        "host_share": tiers["host"] / num_tokens,
        "ttft_p50_s": statistics.median(seconds),
        "ttft_p95_s": sorted(seconds)[int(0.95 * len(seconds))],
        "load_back": rank["load_back"],
        "evicted_tokens": rank["evicted_tokens"],
    }


def run_seed(seed: int, num_sessions: int, gap_s: float) -> list[dict]:
    """One row an arm, each on a server of its own."""
    asked, rows = [prompt for _, prompt in arrivals(seed, num_sessions)], []
    for arm, is_on in ARMS.items():
        config = json.dumps({**CONFIG, "load_back": is_on})
        flags = [*FLAGS, "--radix-eviction-policy", "importance", "--radix-eviction-policy-config", config]
        with launch(flags) as server:
            row = {"seed": seed, "arm": arm, "requests": len(asked), **run(server, asked, gap_s)}
        rows.append(row)
        print(
            f"seed {seed}  {arm:<9}  device {row['device_share']:6.1%}  host {row['host_share']:6.1%}  "
            f"TTFT p50 {row['ttft_p50_s']:.2f} s, p95 {row['ttft_p95_s']:.2f} s  {row['load_back'] or ''}",
            flush=True,
        )
    return rows


def verdict(rows: list[dict]) -> tuple[bool, str]:
    """Whether "on" is above both others by more than these differ, in every seed, and the line that says so."""
    gains, noise = [], []
    for seed in sorted({row["seed"] for row in rows}):
        share = {row["arm"]: row["device_share"] for row in rows if row["seed"] == seed}
        gains.append(share["on"] - max(share["off"], share["off again"]))
        noise.append(abs(share["off"] - share["off again"]))
    is_above = min(gains) > max(noise)
    word = "raises" if is_above else "does not raise beyond the noise"
    points = ", ".join(f"{100 * gain:+.1f}" for gain in gains)
    return is_above, (
        f"load_back {word} the share found on the device at admission: {points} points above the better run without "
        f"it, noise up to {100 * max(noise):.1f}"
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--sessions", type=int, default=6, help="per agent")
    parser.add_argument("--gap-s", type=float, default=0.3)
    parser.add_argument("--json", type=Path, default=RESULT)
    parser.add_argument("--smoke", action="store_true", help="one seed, one session an agent; writes nothing")
    args = parser.parse_args(argv)
    seeds, sessions = (
        ([0], 1) if args.smoke else ([int(seed) for seed in args.seeds.split(",")], args.sessions)
    )
    rows = [row for seed in seeds for row in run_seed(seed, sessions, args.gap_s)]
    is_above, line = verdict(rows)
    print(line)
    if args.smoke:
        return 0
    settings = {
        "device_tokens": DEVICE_TOKENS,
        "sessions_per_agent": sessions,
        "gap_s": args.gap_s,
        "config": CONFIG,
        "flags": FLAGS,
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    write_json(args.json, {**settings, "rows": rows, "verdict": line})
    return 0 if is_above else 1


if __name__ == "__main__":
    sys.exit(main())
