"""What the pre-warm evaluations share: the server, prompts of words, time to first token, ratios with their spread."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx

from radiximp import Client
from radiximp.replay.files import write_json

RESULTS = Path(__file__).parent / "results" / "prewarm"
FLAGS = ["--radix-eviction-policy", "importance", "--log-level", "warning", "--sleep-on-idle"]
_NUM_RESAMPLES = 4000
_WORDS = (
    "account answer basket boat book bridge candle chair city clerk cloud coat corner desk door field fire floor flower "
    "forest garden glass gold grain green guard hand harbor hill horse house island key kitchen lake lamp letter library "
    "light map market meadow mill mirror moon morning mountain music needle night ocean office orange page paper path "
    "pencil people picture plate pocket port price queen question rain river road room rope rule salt school sea season "
    "shadow ship shop silver sister snow soldier song spoon stage star station stone storm story street summer sun table "
    "teacher tower town train tree valley village voice wall watch water wheel wind window winter wood word world yard"
).split()


def words(rng: random.Random, number: int) -> str:
    """Text that no other call of this generator gives; about a token a word."""
    return " ".join(rng.choice(_WORDS) for _ in range(number))


def ttft_s(http: httpx.Client, messages: list[dict], max_tokens: int = 1, **body) -> float:
    """Seconds from the request to its first token, over a stream that is read to its end."""
    body |= {
        "model": "default",
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
    }
    started, first = time.perf_counter(), None
    with http.stream("POST", "/v1/chat/completions", json=body, timeout=300) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if first is None and line.startswith("data: {") and json.loads(line[6:]).get("choices"):
                first = time.perf_counter()
    assert first is not None, "the stream ended without a token"
    return first - started


def warm(client: Client, messages: list[dict], **namespace) -> dict:
    """Pre-warm one prompt and wait; its result."""
    job = client.wait_for(client.prewarm([{"messages": messages}], **namespace)["id"])
    (result,) = job["results"]
    assert result["error"] is None, result
    return result


def p95_of(values: Sequence[float]) -> float:
    """The value below which 95 of 100 lie; the largest of few."""
    ordered = sorted(values)
    return ordered[min(int(0.95 * len(ordered)), len(ordered) - 1)]


def ratio(
    ours: Sequence[float], base: Sequence[float], of: Callable[[Sequence[float]], float], seed: int
) -> dict:
    """Ratio of a statistic, with the 95 % interval of a bootstrap over requests."""
    rng = random.Random(seed)
    ratios = sorted(
        of(rng.choices(ours, k=len(ours))) / of(rng.choices(base, k=len(base))) for _ in range(_NUM_RESAMPLES)
    )
    low, high = ratios[int(0.025 * _NUM_RESAMPLES)], ratios[int(0.975 * _NUM_RESAMPLES)]
    return {"ratio": of(ours) / of(base), "low": low, "high": high}


def summary(values: Sequence[float]) -> dict:
    """p50, p95, extremes and how many."""
    return {
        "num": len(values),
        "p50_s": statistics.median(values),
        "p95_s": p95_of(values),
        "min_s": min(values),
        "max_s": max(values),
    }


def show(name: str, found: dict) -> str:
    """A ratio and its interval."""
    return f"{name} {found['ratio']:.3f} (95 % interval {found['low']:.3f} .. {found['high']:.3f})"


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    """--seed, --smoke, --json."""
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--smoke", action="store_true", help="a minute, to see that it runs; writes no result"
    )
    parser.add_argument("--json", type=Path, default=RESULTS / f"{name}.json", help="default: %(default)s")


def write(args: argparse.Namespace, result: dict) -> None:
    """The result file, unless this was a smoke test."""
    if not args.smoke:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        write_json(args.json, result)
        print(f"written to {args.json}")
