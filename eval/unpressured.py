"""What the policy costs when everything fits: request throughput against stock lru on the same (Python) tree core.

    python -m eval.unpressured [--rounds 7] [--requests 40] [--json FILE]

Three servers are up at once (lru, lru again, importance) and take turns, in an order that rotates. The ratio of
the two lru servers is the noise floor (A/A); ours is within it or it is not. Exit code 1 if it is not.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from radiximp.replay.files import write_json
from tests.server.server import Server, launch

FLAGS = [
    "--max-total-tokens",
    "16384",
    "--max-running-requests",
    "8",
    "--log-level",
    "warning",
    "--sleep-on-idle",
]
STOCK = {"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python"}
VARIANTS = {"lru": "lru", "lru again": "lru", "importance": "importance"}


def prompts(num_requests: int, seed: int) -> list[list[int]]:
    """Prompts of 150 tokens, 100 of them shared by eight at a time."""
    rng = random.Random(seed)
    heads = [[rng.randrange(1000, 40000) for _ in range(100)] for _ in range(-(-num_requests // 8))]
    return [heads[i // 8] + [rng.randrange(1000, 40000) for _ in range(50)] for i in range(num_requests)]


def requests_per_s(server: Server, batch: list[list[int]]) -> float:
    """Throughput of one batch, eight at a time, on an empty cache."""
    server.flush()
    started = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda ids: server.generate(ids, num_tokens=4), batch))
    return len(batch) / (time.monotonic() - started)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)

    rates: dict[str, list[float]] = {name: [] for name in VARIANTS}
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(launch([*FLAGS, "--radix-eviction-policy", policy], env=STOCK))
            for name, policy in VARIANTS.items()
        }
        for server in servers.values():  # warm up
            requests_per_s(server, prompts(8, seed=10_000))
        for turn in range(args.rounds):
            names = list(VARIANTS)
            names = names[turn % 3 :] + names[: turn % 3]
            for name in names:
                rates[name].append(requests_per_s(servers[name], prompts(args.requests, seed=turn)))
        stats = servers["importance"].get("/radiximp/stats").json()["ranks"][0]
    evictions = stats["evictions"]
    floor = [b / a for a, b in zip(rates["lru"], rates["lru again"], strict=True)]
    ours = [b / a for a, b in zip(rates["lru"], rates["importance"], strict=True)]
    is_within = min(floor) <= statistics.median(ours)
    result = {
        "rounds": args.rounds,
        "requests_per_round": args.requests,
        "evictions": evictions,
        "requests_per_s": rates,
        "lru_again_over_lru": {"median": statistics.median(floor), "min": min(floor), "max": max(floor)},
        "importance_over_lru": {"median": statistics.median(ours), "min": min(ours), "max": max(ours)},
        "is_within_noise": is_within,
    }
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        write_json(args.json, result)
    for name, ratios in (("lru again / lru", floor), ("importance / lru", ours)):
        print(f"{name:<18} median {statistics.median(ratios):.3f} ({min(ratios):.3f} .. {max(ratios):.3f})")
    print(f"evictions: {evictions}")
    if any(evictions.values()):
        print("error: something was evicted, so this was not unpressured", file=sys.stderr)
        return 1
    print("within the noise" if is_within else "slower than the noise")
    return 0 if is_within else 1


if __name__ == "__main__":
    sys.exit(main())
