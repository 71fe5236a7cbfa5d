"""Cold against pre-warmed: time to first token of the first request with a 2,000-token system prompt.

    python -m eval.prewarm_ttft [--prompts 20] [--words 1970] [--seed 0] [--smoke] [--json FILE]

Every prompt is new. Of each pair one is asked cold and one after its system prompt was pre-warmed; which comes first
alternates, all in one run on one server. Exit code 1 if p50 or p95 is above 0.35 of cold.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys

import httpx

from eval.prewarm_rig import FLAGS, add_arguments, p95_of, ratio, show, summary, ttft_s, warm, words, write
from radiximp import Client
from tests.server.server import Server, launch

TARGET = 0.35


def ask(server: Server, num_prompts: int, num_words: int, seed: int) -> dict[str, list]:
    """Seconds of each arm, and the tokens of the system prompts."""
    rng = random.Random(seed)
    found: dict[str, list] = {"cold": [], "warm": [], "tokens": [], "prewarm_s": []}
    with httpx.Client(base_url=server.url) as http, Client(server.url, timeout_s=300) as client:
        ttft_s(http, [{"role": "user", "content": words(rng, 50)}])
        for number in range(num_prompts):
            for arm in ("cold", "warm") if number % 2 else ("warm", "cold"):
                system = [{"role": "system", "content": f"You are a clerk. {words(rng, num_words)}"}]
                if arm == "warm":
                    result = warm(client, system)
                    found["tokens"].append(result["tokens"])
                    found["prewarm_s"].append(result["seconds"])
                question = {"role": "user", "content": words(rng, 12)}
                found[arm].append(ttft_s(http, [*system, question]))
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--words", type=int, default=1970)
    add_arguments(parser, "ttft")
    args = parser.parse_args(argv)
    if args.smoke:
        args.prompts, args.words = 3, 400

    with launch([*FLAGS, "--max-total-tokens", "16384"]) as server:
        found = ask(server, args.prompts, args.words, args.seed)
    p50 = ratio(found["warm"], found["cold"], statistics.median, args.seed)
    p95 = ratio(found["warm"], found["cold"], p95_of, args.seed)
    is_met = max(p50["ratio"], p95["ratio"]) <= TARGET
    result = {
        "seed": args.seed,
        "prompts": args.prompts,
        "system_prompt_tokens": [min(found["tokens"]), max(found["tokens"])],
        "cold": summary(found["cold"]),
        "warm": summary(found["warm"]),
        "prewarm_seconds": summary(found["prewarm_s"]),
        "p50_warm_over_cold": p50,
        "p95_warm_over_cold": p95,
        "target": TARGET,
        "is_met": is_met,
        "cold_s": found["cold"],
        "warm_s": found["warm"],
    }
    write(args, result)
    print(
        f"{args.prompts} prompts of {min(found['tokens'])} to {max(found['tokens'])} tokens, seed {args.seed}"
    )
    for arm in ("cold", "warm"):
        row = result[arm]
        print(
            f"{arm:<5} p50 {row['p50_s']:.3f} s, p95 {row['p95_s']:.3f} s ({row['min_s']:.3f} .. {row['max_s']:.3f})"
        )
    print(show("p50 warm / cold", p50))
    print(show("p95 warm / cold", p95))
    print(f"VERDICT at most {TARGET} of cold: {'yes' if is_met else 'NO'}")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
