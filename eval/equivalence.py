"""The same requests under `lru` and under `importance`: every token and log-probability must be equal.

    python -m eval.equivalence [--requests 2000] [--seed 0] [--json FILE]

Two servers of the served model run side by side, with the device pool far smaller than the working
set, SGLang's tree sanity check on, and the host tier behind it. The traffic mixes what a cluster sees:
agents that share system prompts and come back, forks, one-shots, tenants with salts, long prompts in
chunks. A prefix cache may change what is computed, never what is answered. Exit code 1 on any difference.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from radiximp.replay.files import write_json
from tests.server.server import Server, launch

FLAGS = [
    *("--max-total-tokens", "3072", "--chunked-prefill-size", "256", "--hicache-ratio", "1.5"),
    *("--max-running-requests", "8", "--log-level", "warning"),
]
ENVIRONMENT = {"SGLANG_ENABLE_TREE_CACHE_SANITY_CHECK": "1"}
NUM_CLIENTS = 8
NUM_OUTPUT_TOKENS = 2


def mixed_requests(num_requests: int, seed: int) -> list[dict]:
    """Request bodies without the sampling part, deterministic in `seed`."""
    rng = random.Random(seed)

    def run(low: int, high: int) -> list[int]:
        return [rng.randrange(1000, 40000) for _ in range(rng.randint(low, high))]

    systems = [run(60, 160) for _ in range(6)]
    sessions = [
        (rng.choice(systems) + run(10, 40), rng.choice([None, "tenant-a", "tenant-b"])) for _ in range(24)
    ]
    bodies = []
    for _ in range(num_requests):
        kind = rng.random()
        if kind < 0.6:  # an agent's next turn
            at = rng.randrange(len(sessions))
            ids, salt = sessions[at]
            ids = ids + run(5, 30)
            sessions[at] = (ids, salt) if len(ids) < 500 else (rng.choice(systems) + run(10, 40), salt)
        elif kind < 0.75:  # a fork of a session
            ids, salt = rng.choice(sessions)
            ids = ids[: rng.randint(20, len(ids))] + run(5, 20)
        elif kind < 0.97:  # a one-shot prompt
            ids, salt = run(30, 120), None
        else:  # a long one, prefilled in chunks
            ids, salt = run(400, 900), None
        bodies.append({"input_ids": ids, **({"cache_salt": salt} if salt else {})})
    return bodies


def answers(server: Server, bodies: list[dict]) -> list[dict]:
    """Tokens, log-probabilities and cached tokens of each answer, in the order of the requests."""

    def ask(body: dict) -> dict:
        rest = {key: value for key, value in body.items() if key != "input_ids"}
        response = server.generate(body["input_ids"], NUM_OUTPUT_TOKENS, **rest)
        meta = response["meta_info"]
        return {
            "tokens": response["output_ids"],
            "logprobs": [entry[0] for entry in meta["output_token_logprobs"]],
            "cached": meta["cached_tokens"],
        }

    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        return list(pool.map(ask, bodies))


def run_policy(policy: str, bodies: list[dict]) -> tuple[list[dict], dict]:
    """Answers and a summary of one server."""
    with launch([*FLAGS, "--radix-eviction-policy", policy], env=ENVIRONMENT) as server:
        started = time.monotonic()
        rows = answers(server, bodies)
        seconds = time.monotonic() - started
        summary = {"policy": policy, "seconds": seconds, "cached_tokens": sum(row["cached"] for row in rows)}
        if policy == "importance":
            summary["stats"] = server.get("/radiximp/stats").json()["ranks"][0]
        log = server.log()
        assert "Sanity check FAILED" not in log, "the tree's sanity check failed"
    return rows, summary


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)

    bodies = mixed_requests(args.requests, args.seed)
    with ThreadPoolExecutor(2) as pool:
        runs = pool.map(run_policy, ("lru", "importance"), (bodies, bodies))
    (lru, lru_summary), (ours, our_summary) = runs
    different = [
        i
        for i, (a, b) in enumerate(zip(lru, ours, strict=True))
        if a["tokens"] != b["tokens"] or a["logprobs"] != b["logprobs"]
    ]
    prompt_tokens = sum(len(body["input_ids"]) for body in bodies)
    evictions = our_summary["stats"]["evictions"]
    result = {
        "requests": len(bodies),
        "seed": args.seed,
        "prompt_tokens": prompt_tokens,
        "different_answers": len(different),
        "first_different": different[:10],
        "policies": [lru_summary, our_summary],
    }
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        write_json(args.json, result)
    print(f"{len(bodies)} requests, {prompt_tokens} prompt tokens, {len(different)} answers differ")
    for summary in result["policies"]:
        share = summary["cached_tokens"] / prompt_tokens
        print(f"  {summary['policy']:<12} {share:6.1%} of prompt tokens cached, {summary['seconds']:.0f} s")
    print(f"  importance evicted {evictions['device']} device and {evictions['host']} host nodes")
    print(f"  {our_summary['stats']['sanity_checks']} sanity checks of the whole tree, no violation")
    if not our_summary["stats"]["sanity_checks"]:
        print("error: the sanity check never ran", file=sys.stderr)
        return 1
    if not evictions["device"] or not evictions["host"]:
        print("error: no eviction pressure, so this run shows nothing", file=sys.stderr)
        return 1
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
