"""Eight clients chat, with and without 50 prompts being pre-warmed behind them: what it does to their time to first token.

    python -m eval.prewarm_background [--pairs 4] [--round-s 55] [--think-s 14] [--seed 0] [--smoke] [--json FILE]

Rounds with and without alternate on one server, each on an empty cache; the two of a pair have the same clients,
think times and prompt lengths. How many prompts got warm is part of the result: a pre-warm that never runs costs nothing.
Exit code 1 if p95 with it is above 1.10 of p95 without.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from eval.prewarm_rig import FLAGS, add_arguments, p95_of, ratio, show, summary, ttft_s, words, write
from radiximp import Client
from tests.server.server import Server, launch

TARGET = 1.10
NUM_CLIENTS = 8
NUM_PROMPTS = 50
PROMPT_WORDS = 300
_TURNS = 4
_ANSWER_TOKENS = 8


def chat(server: Server, seed: int, until_s: float, think_s: float) -> list[float]:
    """One client's conversations until the time is over; the seconds to each first token."""
    rng, found = random.Random(seed), []
    time.sleep(rng.uniform(0, think_s))
    with httpx.Client(base_url=server.url) as http:
        while True:
            messages = [{"role": "system", "content": f"You are brief. {words(rng, 60)}"}]
            for _ in range(_TURNS):
                if time.monotonic() >= until_s:
                    return found
                messages.append({"role": "user", "content": words(rng, rng.randrange(20, 60))})
                found.append(ttft_s(http, messages, _ANSWER_TOKENS))
                messages.append({"role": "assistant", "content": words(rng, _ANSWER_TOKENS)})
                time.sleep(rng.expovariate(1 / think_s))


def one_round(server: Server, seed: int, round_s: float, think_s: float, is_warming: bool) -> dict:
    """Seconds to each first token of all clients, and how far the pre-warm came."""
    server.flush()
    rng = random.Random(1000 + seed)
    with Client(server.url, timeout_s=120) as client, ThreadPoolExecutor(NUM_CLIENTS) as pool:
        prompts = [{"text": words(rng, PROMPT_WORDS)} for _ in range(NUM_PROMPTS)]
        job = client.prewarm(prompts) if is_warming else None
        until_s = time.monotonic() + round_s
        clients = [pool.submit(chat, server, 100 * seed + n, until_s, think_s) for n in range(NUM_CLIENTS)]
        seconds = [second for talk in clients for second in talk.result()]
        warmed = {"prompts_warmed": 0, "tokens_prefilled": 0}
        if job is not None:
            results = client.cancel_prewarm(job["id"])["results"]
            warmed = {
                "prompts_warmed": sum(row["error"] is None for row in results),
                "tokens_prefilled": sum(row["tokens_prefilled"] for row in results),
            }
    return {"is_warming": is_warming, "seed": seed, "seconds": seconds, **warmed}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--round-s", type=float, default=55)
    parser.add_argument("--think-s", type=float, default=14)
    add_arguments(parser, "background")
    args = parser.parse_args(argv)
    if args.smoke:
        args.pairs, args.round_s, args.think_s = 1, 15, 4

    rounds = []
    with launch([*FLAGS, "--max-total-tokens", "32768"]) as server:
        server.chat("Hello")
        for pair in range(args.pairs):
            for is_warming in (False, True) if pair % 2 else (True, False):
                rounds.append(one_round(server, args.seed + pair, args.round_s, args.think_s, is_warming))
    seconds = {
        arm: [s for row in rounds if row["is_warming"] is arm for s in row["seconds"]]
        for arm in (True, False)
    }
    p50 = ratio(seconds[True], seconds[False], statistics.median, args.seed)
    p95 = ratio(seconds[True], seconds[False], p95_of, args.seed)
    is_met = p95["ratio"] <= TARGET
    result = {
        "seed": args.seed,
        "pairs": args.pairs,
        "round_s": args.round_s,
        "think_s": args.think_s,
        "clients": NUM_CLIENTS,
        "prompts": NUM_PROMPTS,
        "without": summary(seconds[False]),
        "with": summary(seconds[True]),
        "p50_with_over_without": p50,
        "p95_with_over_without": p95,
        "target": TARGET,
        "is_met": is_met,
        "rounds": rounds,
    }
    write(args, result)
    for row in rounds:
        name = "with" if row["is_warming"] else "without"
        print(
            f"seed {row['seed']} {name:<8} {len(row['seconds'])} chats, p50 {statistics.median(row['seconds']):.3f} s, "
            f"p95 {p95_of(row['seconds']):.3f} s, {row['prompts_warmed']} of {NUM_PROMPTS} prompts warmed"
        )
    print(show("p50 with / without", p50))
    print(show("p95 with / without", p95))
    print(f"VERDICT p95 at most {TARGET} of without: {'yes' if is_met else 'NO'}")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
