"""Agents' conversations on the real server under every policy in turn: tokens found per tier, time to first token.

    python -m eval.serving_hits [--conversations 16] [--turns 6] [--policies LIST] [--pools LIST] [--seed 0] [--json FILE]

The conversations are tau-bench's (airline; all share one system message), interleaved by a seeded model of think
times, two at a time, with one new token each: the time to the answer is the time to the first token. Device
pools of a quarter and of half of the working set, a host pool of half of it. Besides SGLang's policies and ours there are
the controls: `importance-zero` gives observed attention no weight, `importance-shuffled` deals it to other nodes. Needs `../shared/traces`, or the folder
that RADIXIMP_TRACES names.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from transformers import AutoTokenizer

from eval import public_traces
from radiximp.replay.files import write_json
from radiximp.serving import default_model
from tests.server.server import Server, launch

FILE = "tau_bench_airline_dev.json.gz"
POLICIES = "lru,slru,lfu,tlru,importance"
NUM_CLIENTS = 2
MAX_PROMPT_TOKENS = 3000
FLAGS = ["--chunked-prefill-size", "1024", "--max-running-requests", "2", "--log-level", "warning"]
# SGLang refuses tlru without a threshold; this is the one that the replay's tlru has.
CONFIGS = {
    "tlru": '{"threshold": 2048, "next_prompt_estimate": 0}',
    "importance-zero": '{"importance_weight": 0}',
    "importance-shuffled": '{"importance_scorer": "shuffled"}',
}
DEVICE_SHARES = {"quarter": 0.25, "half": 0.5}
HOST_SHARE = 0.5


def conversations(number: int, num_turns: int) -> list[list[list[int]]]:
    """Prompts, as token ids, of each turn of the longest conversations' first turns."""
    tokenizer = AutoTokenizer.from_pretrained(default_model.prepare(lambda line: None))
    rows = json.loads(gzip.open(public_traces.find(FILE)).read())
    rows.sort(key=lambda row: (-len(row["traj"]), row["task_id"], row["trial"]))
    found = []
    for row in rows[:number]:
        text, prompts = "", []
        for message in row["traj"]:
            if message["role"] == "assistant" and len(prompts) < num_turns:
                prompts.append(tokenizer.encode(text)[:MAX_PROMPT_TOKENS])
            text += f"<|im_start|>{message['role']}\n{message.get('content') or json.dumps(message.get('tool_calls'))}<|im_end|>\n"
        found.append(prompts)
    return found


def interleaved(talks: list[list[list[int]]], seed: int) -> list[list[int]]:
    """All prompts in order of a modelled arrival: starts spread over the run, lognormal think times."""
    rng, arrivals = random.Random(seed), []
    for talk in talks:
        at_s = rng.uniform(0, 17.0 * len(talk))
        for prompt in talk:
            arrivals.append((at_s, prompt))
            at_s += rng.lognormvariate(2.8, 1.2)
    return [prompt for _, prompt in sorted(arrivals, key=lambda arrival: arrival[0])]


def working_set_tokens(prompts: list[list[int]]) -> int:
    """Distinct tokens of the prefix tree of all prompts."""
    return (
        len({hash(tuple(prompt[:end])) for prompt in prompts for end in range(16, len(prompt) + 1, 16)}) * 16
    )


def run(server: Server, prompts: list[list[int]]) -> dict:
    """Hits by tier and latencies of one pass."""

    def ask(prompt: list[int]) -> tuple[float, dict]:
        started = time.monotonic()
        answer = server.generate(prompt, num_tokens=1, return_logprob=False)
        return time.monotonic() - started, answer["meta_info"]

    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        found = list(pool.map(ask, prompts))
    asked = sum(map(len, prompts))
    tiers = {"device": 0, "host": 0}
    for _, meta in found:
        details = meta.get("cached_tokens_details") or {"device": meta["cached_tokens"]}
        for tier in tiers:
            tiers[tier] += details.get(tier, 0)
    seconds = sorted(second for second, _ in found)
    return {
        "hit_rate": sum(meta["cached_tokens"] for _, meta in found) / asked,
        "device_hit_rate": tiers["device"] / asked,
        "host_hit_rate": tiers["host"] / asked,
        "ttft_p50_s": statistics.median(seconds),
        "ttft_p95_s": seconds[int(0.95 * len(seconds))],
        "seconds": sum(seconds),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--conversations", type=int, default=16)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--policies", default=POLICIES)
    parser.add_argument("--pools", default=",".join(DEVICE_SHARES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)

    prompts = interleaved(conversations(args.conversations, args.turns), args.seed)
    total = working_set_tokens(prompts)
    rows = []
    print(f"{len(prompts)} requests, {sum(map(len, prompts))} prompt tokens, working set {total}")
    for name in args.pools.split(","):
        device = int(total * DEVICE_SHARES[name])
        pools = [
            "--max-total-tokens",
            str(device),
            "--hicache-ratio",
            f"{max(HOST_SHARE * total / device, 1.01):.2f}",
        ]
        for policy in args.policies.split(","):
            flags = [*FLAGS, *pools, "--radix-eviction-policy", policy.partition("-")[0]]
            if policy in CONFIGS:
                flags += ["--radix-eviction-policy-config", CONFIGS[policy]]
            with launch(flags) as server:
                run(server, [list(range(2000, 2200))])
                server.flush()
                row = {"policy": policy, "pool": name, "device_tokens": device, **run(server, prompts)}
            rows.append(row)
            print(
                f"{name:<8} {device:>6} {policy:<19} hit {row['hit_rate']:6.1%} (device {row['device_hit_rate']:6.1%}, "
                f"host {row['host_hit_rate']:6.1%})  TTFT p50 {row['ttft_p50_s']:.2f} s, p95 {row['ttft_p95_s']:.2f} s",
                flush=True,
            )
            if args.json:
                args.json.parent.mkdir(parents=True, exist_ok=True)
                result = {
                    "conversations": args.conversations,
                    "turns": args.turns,
                    "requests": len(prompts),
                    "working_set_tokens": total,
                    "seed": args.seed,
                    "rows": rows,
                }
                write_json(args.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
