"""Percentiles by policy and pool, ratios against SGLang's policies with intervals over sessions, and the noise floor. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from eval.bootstrap import interval_over, shown
from eval.serving.clients import FIELDS

STOCK = ("lru", "slru", "lfu", "tlru")
NOISE, OURS = "lru again", "importance"
CONTROLS = ("importance-zero", "importance-shuffled")
LRU_TARGET, BEST_TARGET, TARGET_POOL = 0.75, 0.85, "half"
_NUM_RESAMPLES = 500

Row = dict[str, Any]


def column(row: Row, name: str) -> np.ndarray:
    """[num_requests] one field of a cell's requests."""
    return np.array([request[FIELDS.index(name)] for request in row["requests"]])


def cell(rows: Sequence[Row], pool: str, policy: str) -> list[Row]:
    """One a seed."""
    return [row for row in rows if (row["pool"], row["policy"]) == (pool, policy)]


def table(rows: Sequence[Row]) -> list[Row]:
    """A line per pool and policy, seeds pooled."""
    found = []
    for pool, policy in dict.fromkeys((row["pool"], row["policy"]) for row in rows):
        cells = cell(rows, pool, policy)
        pooled = {name: np.concatenate([column(row, name) for row in cells]) for name in FIELDS}
        asked = pooled["prompt_tokens"].sum()
        found.append({
            "pool": pool, "policy": policy, "seeds": len(cells), "requests": len(pooled["turn"]),
            **{f"{what}_p{p}_s": float(np.percentile(pooled[f"{what}_s"], p)) for what in ("ttft", "tpot") for p in (50, 90, 99)},
            **{f"{tier}_rate": float(pooled[f"{tier}_tokens"].sum() / asked) for tier in ("device", "host")},
            "lost_rate": float(pooled["lost_tokens"].sum() / asked),
            "requests_per_s": float(len(pooled["turn"]) / sum(row["seconds"] for row in cells)),
        })  # fmt: skip
    return found


def ratio(rows: Sequence[Row], pool: str, ours: str, base: str) -> list[float] | None:
    """[p50 TTFT of ours / of base, low, high] over the seeds that both have; sessions are resampled, the same ones for both."""
    pairs = [(a, b) for a in cell(rows, pool, ours) for b in cell(rows, pool, base) if a["seed"] == b["seed"]]
    if not pairs:
        return None
    groups = []
    for a, b in pairs:
        ours_s, base_s, of_a, of_b = (
            column(a, "ttft_s"),
            column(b, "ttft_s"),
            column(a, "session"),
            column(b, "session"),
        )
        groups += [(ours_s[of_a == session], base_s[of_b == session]) for session in np.unique(of_a)]
    median = lambda chosen, side: np.median(np.concatenate([groups[i][side] for i in chosen]))  # noqa: E731
    return interval_over(len(groups), lambda chosen: median(chosen, 0) / median(chosen, 1), _NUM_RESAMPLES)


def concluded(rows: Sequence[Row]) -> tuple[Row, list[str]]:
    """(summary, verdict lines)."""
    lines, ratios = [], []
    for pool in dict.fromkeys(row["pool"] for row in rows):
        of = {
            name: found
            for name in (*STOCK, NOISE, *CONTROLS)
            if (found := ratio(rows, pool, OURS, name)) is not None
        }
        noise = ratio(rows, pool, NOISE, "lru")
        stock = [name for name in STOCK if name in of]
        if not stock:
            continue
        best = max(stock, key=lambda name: of[name][0])
        ratios.append({"pool": pool, "over": of, "noise": noise, "best_stock": best})
        floor = f"lru against itself {shown(noise)}" if noise else "no second lru run yet"
        num_seeds = len(cell(rows, pool, OURS))
        said = f"Serving, {pool} pool, p50 TTFT over {num_seeds} seed{'s' if num_seeds > 1 else ''}: importance is "
        said += (
            f"{shown(of['lru'])} of lru's and {shown(of[best])} of {best}'s, the best of SGLang's own here ({floor})"
            if "lru" in of
            else "not comparable"
        )
        controls = ", ".join(f"{shown(of[name])} of {name}'s" for name in CONTROLS if name in of)
        said += f"; {controls}" if controls else ""
        if pool == TARGET_POOL and "lru" in of:
            is_met = of["lru"][2] <= LRU_TARGET and of[best][2] <= BEST_TARGET
            is_missed = of["lru"][1] > LRU_TARGET or of[best][1] > BEST_TARGET
            word = "supported" if is_met else ("not supported" if is_missed else "unclear")
            said += f"; target at most {LRU_TARGET} and {BEST_TARGET}: {word}"
        elif "lru" in of:
            loses = of[best][1] > max(1.0, noise[2] if noise else 1.0)
            said += ": loses by more than the noise" if loses else ": no loss beyond the noise"
        lines.append(said)
    return {"table": table(rows), "ratios": ratios}, lines
