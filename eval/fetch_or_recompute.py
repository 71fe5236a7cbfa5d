"""Always fetch, always recompute, and by cost: time to first token over a host tier that is throttled at five levels.

    python -m eval.fetch_or_recompute [--rounds 40] [--json FILE] [--smoke]

Three real servers, alike but for `fetch_decision`, are asked in turn, in an order that rotates, at one throttle level after
the other. The throttle sleeps in the copy from host to device (`tests/server/copy_faults`); the product knows nothing of it.
Half of the requests have a short prefix on the host and a long question, half a long prefix and a short one; all of a
prefix is on the host alone when it is asked for. p50 is Harrell and Davis's estimate (Biometrika 69, 1982): where half of the requests
are quick and half slow, the plain median hangs on the two in the middle. Intervals resample rounds. 17 minutes of two quiet cores.
Exit code 1 if a verdict is no.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats.mstats import hdmedian

from eval.bootstrap import interval_over, shown
from radiximp.replay.files import write_json
from tests.server.server import Server, launch
from tests.server.throttle import Throttle

POLICIES = {"always fetch": "measure", "always recompute": "recompute", "by cost": "cost"}
# Seconds per load-back, seconds per token of it.
LEVELS = [(0.0, 0.0), (0.05, 0.0), (0.25, 1e-4), (0.5, 2.5e-4), (1.5, 2e-3)]
# Tokens on the host, tokens of the question.
KINDS = {"short prefix": (32, 96), "long prefix": (384, 16)}
NUM_PREFIXES = 3
WARM_ROUNDS = 4
FLAGS = [
    "--radix-eviction-policy",
    "importance",
    "--page-size",
    "16",
    "--max-total-tokens",
    "576",
    "--hicache-ratio",
    "6",
    "--enable-cache-report",
    "--log-level",
    "warning",
    "--sleep-on-idle",
]
WITHIN, MAX_ERROR = 1.05, 0.15
_NUM_RESAMPLES = 400


@dataclass
class Contestant:
    """One policy's server, and what it was seen to do at the current level."""

    name: str
    server: Server
    rng: random.Random
    prefixes: dict[str, list[list[int]]]
    num_samples: int = 0
    ttft_s: list[float] = field(default_factory=list)
    host_tokens: list[int] = field(default_factory=list)
    restores: list[tuple[float, float]] = field(default_factory=list)

    def ask(self, kind: str, number: int, is_measured: bool) -> None:
        """One request of this kind: prefix `number` and a question never asked before."""
        question = [self.rng.randrange(1000, 40000) for _ in range(KINDS[kind][1])]
        prompt = self.prefixes[kind][number % NUM_PREFIXES] + question
        begun_s = time.perf_counter()
        answer = self.server.generate(prompt, num_tokens=1, return_logprob=False)
        took_s = time.perf_counter() - begun_s
        host = self.server.get("/radiximp/calibration").json()["ranks"][0]["calibration"]["tiers"]["host"]
        if is_measured:
            self.ttft_s.append(took_s)
            details = answer["meta_info"].get("cached_tokens_details") or {}
            self.host_tokens.append(details.get("host", 0))
            if host["samples"] > self.num_samples and host["predicted_s"] is not None:
                self.restores.append((host["predicted_s"], host["measured_s"]))
        self.num_samples = host["samples"]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--rounds", type=int, default=40, help="measured rounds a level, one request of each kind"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--smoke", action="store_true", help="two levels, two rounds: does it run")
    args = parser.parse_args(argv)
    levels = [LEVELS[0], LEVELS[2]] if args.smoke else LEVELS
    rows = measure(levels, 2 if args.smoke else args.rounds)
    result = {
        "kinds": {name: {"host_tokens": host, "question_tokens": new} for name, (host, new) in KINDS.items()},
        "rounds": args.rounds,
        "levels": rows,
        **verdicts(rows),
    }
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        write_json(args.json, result)
    show(result)
    return 0 if args.smoke or all(result["verdicts"].values()) else 1


def measure(levels: list[tuple[float, float]], num_rounds: int) -> list[dict[str, Any]]:
    """A row per throttle level."""
    with ExitStack() as stack:
        throttle = Throttle(
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="radiximp-throttle-")))
        )
        contestants = [_start(stack, throttle, name, mode) for name, mode in POLICIES.items()]
        for number in range(
            2 * NUM_PREFIXES
        ):  # every prefix is computed once, and the long ones push all to the host
            for contestant in contestants:
                for kind in KINDS:
                    contestant.ask(kind, number, is_measured=False)
        rows = []
        for delay_s, s_per_token in levels:
            throttle.set(delay_s, s_per_token)
            for number in range(WARM_ROUNDS + num_rounds):
                turn = number % len(contestants)
                for contestant in contestants[turn:] + contestants[:turn]:
                    for kind in KINDS:
                        contestant.ask(kind, number, is_measured=number >= WARM_ROUNDS)
            rows.append(_row(delay_s, s_per_token, contestants))
        return rows


def _start(stack: ExitStack, throttle: Throttle, name: str, mode: str) -> Contestant:
    # Exactly lru, so that all that was not used just now is on the host alone.
    config = {"fetch_decision": mode, "score": "lrfu", "half_life_s": 0, "importance_scorer": "structural"}
    flags = [*FLAGS, "--radix-eviction-policy-config", json.dumps(config)]
    server = stack.enter_context(launch(flags, env=throttle.env))
    rng = random.Random(0)
    prefixes = {
        kind: [[rng.randrange(1000, 40000) for _ in range(host)] for _ in range(NUM_PREFIXES)]
        for kind, (host, _) in KINDS.items()
    }
    return Contestant(name, server, rng, prefixes)


def _row(delay_s: float, s_per_token: float, contestants: list[Contestant]) -> dict[str, Any]:
    row: dict[str, Any] = {"delay_s": delay_s, "s_per_token": s_per_token, "policies": {}}
    for contestant in contestants:
        errors = [abs(predicted - measured) / measured for predicted, measured in contestant.restores]
        row["policies"][contestant.name] = {
            "p50_ttft_s": p50_of(contestant.ttft_s),
            "ttft_s": contestant.ttft_s,
            "host_tokens": contestant.host_tokens,
            "restore_errors": errors,
        }
        contestant.ttft_s, contestant.host_tokens, contestant.restores = [], [], []
    return row


def p50_of(seconds: Sequence[float]) -> float:
    """The median by Harrell and Davis: a mean of all, weighted by how likely each is the median."""
    return float(hdmedian(np.asarray(seconds)))


def over_better(row: dict[str, Any]) -> list[float]:
    """[p50 by cost / p50 of the better fixed policy, low, high] at one level; rounds are resampled, the same ones for all."""
    by_round = [np.reshape(policy["ttft_s"], (-1, len(KINDS))) for policy in row["policies"].values()]

    def ratio(chosen: np.ndarray) -> float:
        *fixed, ours = (p50_of(seconds[chosen].ravel()) for seconds in by_round)
        return ours / min(fixed)

    return interval_over(len(by_round[0]), ratio, _NUM_RESAMPLES)


def verdicts(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What was claimed, and whether it held."""
    over = [over_better(row) for row in rows]
    ratios = [ratio for ratio, _, _ in over]
    errors = [
        error for row in rows for policy in row["policies"].values() for error in policy["restore_errors"]
    ]
    gains = ratios[1:-1]
    error = statistics.median(errors) if errors else None
    return {
        "by_cost_over_better": over,
        "restore_median_error": error,
        "num_restores": len(errors),
        "verdicts": {
            "within 5 % of the better at each level": all(ratio <= WITHIN for ratio in ratios),
            "better than both somewhere in the middle": any(ratio < 1 / WITHIN for ratio in gains),
            "median error of predicted restore time at most 15 %": error is not None and error <= MAX_ERROR,
        },
    }


def show(result: dict[str, Any]) -> None:
    """The table and the verdicts, for people."""
    print(f"{'throttle':<24}" + "".join(f"{name:>18}" for name in POLICIES) + f"{'cost / better':>24}")
    for row, ratio in zip(result["levels"], result["by_cost_over_better"], strict=True):
        level = f"{1e3 * row['delay_s']:.0f} ms + {1e3 * row['s_per_token']:g} ms/token"
        cells = "".join(f"{1e3 * policy['p50_ttft_s']:>15.0f} ms" for policy in row["policies"].values())
        print(f"{level:<24}{cells}{shown(ratio):>24}")
    error = result["restore_median_error"]
    print(
        f"predicted restore time: {result['num_restores']} restores, median error {error:.1%}"
        if error is not None
        else "no restores"
    )
    for claim, holds in result["verdicts"].items():
        print(f"{'yes' if holds else 'NO '}  {claim}")


if __name__ == "__main__":
    sys.exit(main())
