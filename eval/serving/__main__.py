"""Sessions on the real server under every policy in turn: time to first token, time per token, hits by tier, what was evicted and wanted.

    python -m eval.serving [--seeds 0,1,2] [--pools half,quarter] [--policies LIST] [--minutes 8] [--json FILE] [--smoke]

42 sessions, eight users, think times; a fresh server a cell, device pool of half or a quarter of the distinct tokens, a host pool
hardly larger that holds copies of what is on the device first. `lru again` is the noise floor, `importance-zero` and `importance-shuffled` are the controls, `importance-all` adds load-back and
the cost model. A call goes on where the one before it stopped; a cell takes about two minutes of two cores. Absolute times belong to the
machine; the ratios of one run carry over.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from eval.replay_tables.runner import progress
from eval.result_file import RESULTS, ResultFile, add_arguments, deadline_s
from eval.serving import verdicts
from eval.serving.clients import NUM_OUTPUT_TOKENS, played
from eval.serving.traffic import SMOKE, Mix, Session, sessions, working_set_tokens
from radiximp.serving import default_model
from tests.server.server import launch

PATH = RESULTS / "serving" / "cpu.json"
DEVICE_SHARES = {"half": 0.5, "quarter": 0.25}
# SGLang takes no host pool that is not larger than the device's.
HOST_RATIO = 1.01
NUM_USERS, MAX_RUNNING = 8, 4
# SGLang refuses tlru without a threshold; this is the one that the replay's tlru has.
CONFIGS = {
    "tlru": {"threshold": 2048, "next_prompt_estimate": 0},
    "importance-zero": {"importance_weight": 0},
    "importance-shuffled": {"importance_scorer": "shuffled"},
    "importance-all": {"load_back": True, "hotspot_queries": 20, "fetch_decision": "cost"},
}
POLICIES = (
    "lru",
    "importance",
    "lru again",
    "slru",
    "lfu",
    "tlru",
    "importance-zero",
    "importance-shuffled",
    "importance-all",
)
FLAGS = ("--chunked-prefill-size", "1024", "--max-running-requests", str(MAX_RUNNING), "--log-level", "warning", "--enable-cache-report")  # fmt: skip


def flags_of(policy: str, device_tokens: int) -> list[str]:
    """The server's flags of a cell."""
    flags = [*FLAGS, "--max-total-tokens", str(device_tokens), "--hicache-ratio", str(HOST_RATIO)]
    flags += ["--radix-eviction-policy", policy.partition("-")[0].partition(" ")[0]]
    return flags + (
        ["--radix-eviction-policy-config", json.dumps(CONFIGS[policy])] if policy in CONFIGS else []
    )


def cell_row(policy: str, pool: str, seed: int, found: list[Session], think_factor: float) -> dict:
    """One fresh server, one pass of all sessions."""
    total = working_set_tokens(found)
    device = max(int(DEVICE_SHARES[pool] * total), MAX_RUNNING * 1024)
    with launch(flags_of(policy, device)) as server:
        # The first requests of a server are slow whatever they ask.
        server.generate(list(range(2000, 2300)), num_tokens=2)
        server.flush()
        requests, seconds = played(server.url, found, NUM_USERS, think_factor)
    row = {"policy": policy, "pool": pool, "seed": seed, "device_tokens": device, "working_set_tokens": total}
    return row | {"seconds": round(seconds, 2), "requests": requests}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m eval.serving", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--pools", default=",".join(DEVICE_SHARES))
    parser.add_argument("--policies", default=",".join(POLICIES))
    add_arguments(parser, PATH)
    args = parser.parse_args(argv)
    until_s = deadline_s(args)
    settings = {
        "users": NUM_USERS,
        "max_running": MAX_RUNNING,
        "output_tokens": NUM_OUTPUT_TOKENS,
        "host_ratio": HOST_RATIO,
    }
    result = ResultFile(None if args.smoke else args.json, "python -m eval.serving", settings)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        default_model.prepare(lambda line: print(line, file=sys.stderr))
    )
    cells = [
        (int(seed), pool, policy)
        for seed in args.seeds.split(",")
        for pool in args.pools.split(",")
        for policy in args.policies.split(",")
    ]
    if args.smoke:
        cells = [(0, "half", "importance")]
    done = {(row["seed"], row["pool"], row["policy"]) for row in result.rows}
    todo = [one for one in cells if one not in done]
    with progress("serving", len(todo)) as advance:
        for seed, pool, policy in todo:
            if time.monotonic() > until_s:
                break
            found = sessions(tokenizer, seed, SMOKE if args.smoke else Mix())
            row = cell_row(policy, pool, seed, found, 0.1 if args.smoke else 1.0)
            result.add(row)
            advance()
            (line,) = verdicts.table([row])
            print(f"seed {seed} {pool:<8}{policy:<20} TTFT p50 {line['ttft_p50_s']:.2f} p90 {line['ttft_p90_s']:.2f} p99 {line['ttft_p99_s']:.2f} s, "
                  f"device {line['device_rate']:.1%}, host {line['host_rate']:.1%}, lost {line['lost_rate']:.1%}, {row['seconds']:.0f} s", flush=True)  # fmt: skip
    summary, lines = verdicts.concluded(result.rows)
    result.write(summary=summary, verdicts=lines)
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
