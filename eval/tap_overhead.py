"""What observing attention costs: prefill and decode with the tap on and off, in turn, on servers that are up together.

    python -m eval.tap_overhead [--rounds 7] [--prompt-tokens 1500] [--json FILE]

Three servers under the same policy (scorer structural, structural again, softmax) take turns, in an order that rotates.
One request at a time: prefill is the time of a prompt nobody has seen, with one new token; suffix that of 200 new tokens
after a cached prompt; decode that of 48 further tokens, per token. The ratio of the two servers without a tap is the noise
floor. Exit code 1 where the tap's median is above both 1.05 and the floor's largest.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from radiximp.replay.files import write_json
from tests.server.server import Server, launch

LIMIT = 1.05
NUM_SUFFIX_TOKENS = 200
NUM_DECODED = 48
FLAGS = [
    *("--max-total-tokens", "8192", "--hicache-ratio", "1.2", "--log-level", "warning", "--sleep-on-idle"),
]
SCORERS = {"off": "structural", "off again": "structural", "on": "softmax"}
PHASES = ("prefill", "suffix", "decode")


def seconds(server: Server, ids: list[int], num_tokens: int) -> float:
    started = time.perf_counter()
    server.generate(ids, num_tokens=num_tokens, return_logprob=False)
    return time.perf_counter() - started


def measure(server: Server, num_prompt_tokens: int, seed: int) -> dict[str, float]:
    """Seconds of each phase, per token for decode."""
    rng = random.Random(seed)
    ids = [rng.randrange(1000, 40000) for _ in range(num_prompt_tokens)]
    longer = ids + [rng.randrange(1000, 40000) for _ in range(NUM_SUFFIX_TOKENS)]
    server.flush()
    prefill = seconds(server, ids, 1)
    suffix = seconds(server, longer, 1)
    decode = seconds(server, longer, 1 + NUM_DECODED) - seconds(server, longer, 1)
    return {"prefill": prefill, "suffix": suffix, "decode": decode / NUM_DECODED}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prompt-tokens", type=int, default=1500)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)

    found: dict[str, list[dict[str, float]]] = {name: [] for name in SCORERS}
    with ExitStack() as stack:
        servers = {}
        for name, scorer in SCORERS.items():
            config = f'{{"importance_scorer": "{scorer}"}}'
            flags = ["--radix-eviction-policy", "importance", "--radix-eviction-policy-config", config]
            servers[name] = stack.enter_context(launch([*FLAGS, *flags]))
            measure(servers[name], args.prompt_tokens, seed=10_000)  # warm up
        for turn in range(args.rounds):
            names = list(SCORERS)
            for name in names[turn % 3 :] + names[: turn % 3]:
                found[name].append(measure(servers[name], args.prompt_tokens, seed=turn))
        stats = servers["on"].get("/radiximp/stats").json()["ranks"][0]["importance"]
    rows, is_within = [], True
    for phase in PHASES:
        off = [one[phase] for one in found["off"]]
        row = {"phase": phase, "off_s": statistics.median(off)}
        for name in ("off again", "on"):
            ratios = [one[phase] / base for one, base in zip(found[name], off, strict=True)]
            row[f"{name}_over_off"] = {
                "median": statistics.median(ratios),
                "min": min(ratios),
                "max": max(ratios),
            }
        row["is_within"] = row["on_over_off"]["median"] <= max(LIMIT, row["off again_over_off"]["max"])
        is_within &= row["is_within"]
        rows.append(row)
        again, on = row["off again_over_off"], row["on_over_off"]
        print(
            f"{phase:<8} off {row['off_s'] * 1e3:7.1f} ms   off again / off {again['median']:.3f} "
            f"({again['min']:.3f} .. {again['max']:.3f})   on / off {on['median']:.3f} "
            f"({on['min']:.3f} .. {on['max']:.3f})   {'PASS' if on['median'] <= LIMIT else 'MISS'} at {LIMIT}"
        )
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        result = {"rounds": args.rounds, "prompt_tokens": args.prompt_tokens, "limit": LIMIT}
        write_json(args.json, {**result, "observations": stats["observations"], "rows": rows})
    return 0 if is_within else 1


if __name__ == "__main__":
    sys.exit(main())
