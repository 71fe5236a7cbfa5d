"""How near the what-if curve comes to real replays of lru at 0.5, 1, 2 and 4 times a size.

    python -m eval.what_if [--workloads mooncake,...] [--rate 0.01] [--samples 3] [--json FILE] [--smoke]

Twice: at 1 % from the first request to the last, on the traces of which that is a thousand samples; and as it is served, which starts at 16 % and
comes down to 1 % with the traffic, on all. The curve is read once per sample (another seed of the hash: other tokens) and compared with what
the replay hit on the whole trace, with one tier and with a host tier of 2 x the device under write_through: by SGLang's lru, which
drops whole leaves, and by lru that cuts tails as the importance policy does, which is what the curve models. Exit code 1
where a mean absolute error is above 2 points.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import fmean

import orjson

from eval.replay_tables.workloads import TEXT, open_workload, pages_of, survey_of
from radiximp.config import PolicyConfig
from radiximp.policy.baselines.stock import StockPolicy
from radiximp.policy.miss_ratio import MissRatioCurve, unit_hashes, unit_tokens_of
from radiximp.policy.prefix_digest import namespace_hasher
from radiximp.replay.engine import replay_unpinned
from radiximp.replay.run import replay_one
from radiximp.replay.trace import Trace, TraceError
from radiximp.replay.tree import ReplayTree

SCALES = (0.5, 1.0, 2.0, 4.0)
# What 1 x is, of the distinct pages.
BASE = {"mooncake": "5%", "agents-150-2h": "5%", **dict.fromkeys(TEXT, "20%")}
HOST_FACTOR = 2
MAX_MEAN_ERROR = 0.02
MIN_SAMPLES = 1000
TRUTHS = {"lru": "hit_rate", "lru that cuts tails": "hit_rate_tails_cut"}
# How much higher the rate is at first.
MODES = {"constant rate": 1, "as served": 16}
RESULTS = Path(__file__).parent / "results" / "what_if" / "public.json"


def curve_of(trace: Trace, rate: float, sample: int, early_factor: int) -> MissRatioCurve:
    """The curve after the whole trace; sample: which tokens are looked at."""
    unit_tokens = unit_tokens_of(trace.page_tokens)
    curve = MissRatioCurve(unit_tokens, rate, early_factor=early_factor)
    for request in trace.requests():
        digest = namespace_hasher(request.namespace, str(sample)).digest()
        namespace = int.from_bytes(digest[:8], "little")
        hashes = unit_hashes(request.page_ids, 1, trace.page_tokens // unit_tokens, namespace)
        curve.use(hashes, request.num_tokens)
    return curve


def cells_of(name: str, rate: float, num_samples: int, is_smoke: bool) -> list[dict]:
    """One row per size, number of tiers and mode."""
    trace, surveyed = open_workload(name, 0, is_smoke), survey_of(name, 0, is_smoke)
    base_pages, _ = pages_of(name, 0, BASE.get(name, "10%"), "0", is_smoke)
    curves = {
        mode: [curve_of(trace, rate, sample, factor) for sample in range(num_samples)]
        for mode, factor in MODES.items()
    }
    cells = []
    for has_host in (False, True):
        for scale in SCALES:
            device = base_pages if has_host else int(scale * base_pages)
            host = int(scale * HOST_FACTOR * base_pages) if has_host else 0
            row = replay_one(trace, "lru", PolicyConfig(), device, host, num_requests=surveyed.num_requests)
            held_tokens = max(device, host) * trace.page_tokens
            found = {"hit_rate": row.hit_rate, "hit_rate_tails_cut": _with_tails_cut(trace, device, host)}
            size = {"tiers": 2 if has_host else 1, "scale": scale, "held_tokens": held_tokens}
            for mode, of_mode in curves.items():
                cells.append(
                    {"workload": name, "mode": mode, **size, **found, **_estimated(of_mode, held_tokens)}
                )
                print(_line(cells[-1]), flush=True)
    return cells


def _with_tails_cut(trace: Trace, device_pages: int, host_pages: int) -> float:
    tree = ReplayTree(
        StockPolicy("lru"), trace.page_tokens, host_pages, "write_through", ghost_factor=0, trim_tokens=1
    )
    counts = replay_unpinned(tree, trace.requests(), device_pages, 0)
    return (counts.device_hit_tokens + counts.host_hit_tokens) / counts.prompt_tokens


def _estimated(curves: list[MissRatioCurve], held_tokens: int) -> dict:
    return {
        "estimates": [curve.hit_rate(held_tokens) for curve in curves],
        "standard_error": fmean(curve.standard_error(held_tokens) for curve in curves),
        "samples": [curve.num_samples for curve in curves],
        "rates": [curve.rate for curve in curves],
    }


def error_of(cell: dict, truth: str) -> float:
    """Mean over samples of how far the curve is from a replay."""
    return fmean(abs(estimate - cell[TRUTHS[truth]]) for estimate in cell["estimates"])


def _line(cell: dict) -> str:
    estimates = " ".join(f"{found:6.1%}" for found in cell["estimates"])
    errors = " / ".join(f"{100 * error_of(cell, truth):.2f}" for truth in TRUTHS)
    return (
        f"{cell['workload']:14} {cell['mode']:13} {cell['tiers']} tier{'s' if cell['tiers'] > 1 else ' '} "
        f"{cell['scale']:3g}x replays {cell['hit_rate']:6.1%} / {cell['hit_rate_tails_cut']:6.1%}  curve {estimates}  "
        f"error {errors} points (stated {100 * cell['standard_error']:.2f})"
    )


def verdict_of(cells: list[dict], mode: str, truth: str) -> tuple[bool, str]:
    """(met, one line) on the cells of a mode; at a constant rate those with enough samples, and the line names the others."""
    chosen = [cell for cell in cells if cell["mode"] == mode]
    left_out = {
        cell["workload"] for cell in chosen if mode != "as served" and min(cell["samples"]) < MIN_SAMPLES
    }
    chosen = [cell for cell in chosen if cell["workload"] not in left_out]
    if not chosen:
        return (
            True,
            f"not measured, {mode}: fewer than {MIN_SAMPLES} samples in {', '.join(sorted(left_out))}",
        )
    mean = fmean(error_of(cell, truth) for cell in chosen)
    worst = max(chosen, key=lambda cell: error_of(cell, truth))
    is_met = mean <= MAX_MEAN_ERROR
    names = ", ".join(dict.fromkeys(cell["workload"] for cell in chosen))
    line = (
        f"{'PASS' if is_met else 'MISS'}, {mode}, against {truth}: mean absolute error {100 * mean:.2f} points (at most "
        f"{100 * MAX_MEAN_ERROR:g}) over {len(chosen)} cells of {names}; worst cell "
        f"{100 * error_of(worst, truth):.2f} ({worst['workload']}, {worst['tiers']} tiers, {worst['scale']:g}x)"
    )
    if left_out:
        line += f"; left out with fewer than {MIN_SAMPLES} samples: {', '.join(sorted(left_out))}"
    return is_met, line


def main(argv: list[str] | None = None) -> int:
    """Prints a line per cell and the verdict."""
    parser = argparse.ArgumentParser(prog="python -m eval.what_if", description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default=",".join(BASE), help="which, of " + ", ".join(BASE))
    parser.add_argument("--rate", type=float, default=0.01, help="share of the tokens sampled")
    parser.add_argument("--samples", type=int, default=3, help="samples of each trace")
    parser.add_argument("--json", type=Path, default=RESULTS, help=f"default {RESULTS}")
    parser.add_argument("--smoke", action="store_true", help="a generated trace instead; writes no file")
    args = parser.parse_args(argv)
    names = ["scan"] if args.smoke else args.workloads.split(",")
    try:
        cells = [cell for name in names for cell in cells_of(name, args.rate, args.samples, args.smoke)]
    except TraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    verdicts = [verdict_of(cells, mode, truth) for mode in MODES for truth in TRUTHS]
    for _, line in verdicts:
        print(line)
    if not args.smoke:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        result = {"command": "python -m eval.what_if", "verdicts": [line for _, line in verdicts]}
        result |= {"rate": args.rate, "cells": cells}
        args.json.write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2) + b"\n")
    return 0 if all(is_met for is_met, _ in verdicts) else 1


if __name__ == "__main__":
    raise SystemExit(main())
