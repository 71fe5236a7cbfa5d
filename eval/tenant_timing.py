"""Whether one tenant's pre-warm shows to another, by content, count or time.

    python -m eval.tenant_timing [--prompts 30] [--words 400] [--seed 0] [--smoke] [--json FILE]

Every prompt is new and asked once, by a tenant that never asked before: its chat template too is new to it. Before that
another tenant pre-warms something of the same length: another text (cold), the same text (other), or the tenant itself
the same text (own, the positive control). The three take turns in
random order in one run. A two-sided permutation test compares the mean time to first token. Exit code 1 if other
differs from cold (p < 0.05, or any token counted as cached), or own does not.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys

import httpx

from eval.prewarm_rig import FLAGS, add_arguments, ratio, show, summary, ttft_s, warm, words, write
from radiximp import Client
from tests.server.server import Server, launch

ARMS = ("cold", "other", "own")
LEVEL = 0.05
_NUM_PERMUTATIONS = 20_000


def p_value(one: list[float], other: list[float], seed: int) -> float:
    """Of the difference of means, under exchange of the labels."""
    rng, both = random.Random(seed), [*one, *other]
    observed = abs(statistics.fmean(one) - statistics.fmean(other))
    extreme = 0
    for _ in range(_NUM_PERMUTATIONS):
        rng.shuffle(both)
        extreme += abs(statistics.fmean(both[: len(one)]) - statistics.fmean(both[len(one) :])) >= observed
    return (extreme + 1) / (_NUM_PERMUTATIONS + 1)


def pinned_tokens(client: Client, system: list[dict], salt: str) -> int:
    """How much of the prompt a pin under that salt would find; leaves no pin behind."""
    made = client.pin([{"messages": system}], ttl_s=60, cache_salt=salt)
    client.unpin(made["pin_id"])
    return made["tokens_pinned"]


def ask(server: Server, num_prompts: int, num_words: int, seed: int) -> tuple[dict, dict]:
    """(seconds, tokens that a pin of the tenant found before it asked) per arm."""
    rng = random.Random(seed)
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    visible = dict.fromkeys(ARMS, 0)
    with httpx.Client(base_url=server.url) as http, Client(server.url, timeout_s=300) as client:
        ttft_s(http, [{"role": "user", "content": words(rng, 50)}])
        for number in range(num_prompts):
            for arm in rng.sample(ARMS, len(ARMS)):
                tenant = f"{arm} {number}"
                system = [{"role": "system", "content": words(rng, num_words)}]
                decoy = [{"role": "system", "content": words(rng, num_words)}]
                warm(client, decoy if arm == "cold" else system, cache_salt=tenant if arm == "own" else "a")
                visible[arm] += pinned_tokens(client, system, tenant)
                question = {"role": "user", "content": words(rng, 12)}
                seconds[arm].append(ttft_s(http, [*system, question], cache_salt=tenant))
    return seconds, visible


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=30)
    parser.add_argument("--words", type=int, default=400)
    add_arguments(parser, "tenants")
    args = parser.parse_args(argv)
    if args.smoke:
        args.prompts, args.words = 6, 200

    with launch([*FLAGS, "--max-total-tokens", "65536"]) as server:
        seconds, visible = ask(server, args.prompts, args.words, args.seed)
    compared = {}
    for arm in ("other", "own"):
        compared[arm] = {
            "mean_over_cold": ratio(seconds[arm], seconds["cold"], statistics.fmean, args.seed),
            "p_value": p_value(seconds[arm], seconds["cold"], args.seed),
        }
    is_met = compared["other"]["p_value"] >= LEVEL and visible["other"] == 0 == visible["cold"]
    is_sharp = compared["own"]["p_value"] < LEVEL and visible["own"] > 0
    result = {
        "seed": args.seed,
        "prompts": args.prompts,
        "words": args.words,
        "level": LEVEL,
        **{arm: summary(seconds[arm]) for arm in ARMS},
        "compared_with_cold": compared,
        "tokens_that_a_pin_found": visible,
        "is_met": is_met and is_sharp,
        "seconds": seconds,
    }
    write(args, result)
    print(f"{args.prompts} prompts an arm, seed {args.seed}")
    for arm in ("other", "own"):
        print(
            f"{show(f'{arm} / cold, mean', compared[arm]['mean_over_cold'])}, p = {compared[arm]['p_value']:.4f}"
        )
    print(f"tokens that a pin of the tenant found: {visible}")
    print(f"VERDICT another tenant's pre-warm is not visible: {'yes' if is_met else 'NO'}")
    print(f"VERDICT the test sees one's own (positive control): {'yes' if is_sharp else 'NO'}")
    return 0 if is_met and is_sharp else 1


if __name__ == "__main__":
    sys.exit(main())
