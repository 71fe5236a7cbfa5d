"""The bars, and what meets them: from the rows of a result file to rates per cell and PASS or MISS.

Rates are means over seeds; verdicts use the figures as shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from eval.replay_tables.plan import LRU, OURS, STOCK, TRIO
from eval.replay_tables.workloads import AGENTS, AGENTS_ALL
from radiximp.replay.run import BOUND

Rates = dict[str, dict[int, float]]  # policy -> seed -> hit rate
Sizes = tuple[str, str, str]  # capacity, host, write policy

# Token hit %, and share of the gap between lru and the bound in %, that the policy must reach.
HIT_BARS = dict(zip((("mooncake", size) for size in ("1%", "2%", "4.5%", "10%", "20%")), (11.2, 16.2, 22.3, 30.4, 36.3), strict=True))  # fmt: skip
GAP_BARS = {
    (AGENTS, "250k"): 55, (AGENTS, "500k"): 55, (AGENTS, "1M"): 40, (AGENTS, "2M"): 20,
    (AGENTS_ALL, "500k"): 55, (AGENTS_ALL, "1M"): 55, (AGENTS_ALL, "2M"): 20,
}  # fmt: skip
# Points below lru that count as a loss where a trace was made to hurt, and points to the bound that the loop may lack.
LOSS_POINTS = 0.3
LOOP_POINTS = 2.0


def grouped(rows: Iterable[dict[str, Any]]) -> dict[str, dict[Sizes, Rates]]:
    """workload -> sizes -> rates, of the seeds under which lru, ours, the bound and SGLang's policies all ran.

    A size that lacks one of them is left out; any other policy may lack seeds, or be missing.
    """
    found: dict[str, dict[Sizes, Rates]] = {}
    for row in rows:
        sizes = (row["capacity"], row["host"], row["write_policy"])
        rates = found.setdefault(row["workload"], {}).setdefault(sizes, {})
        rates.setdefault(row["policy"], {})[row["seed"]] = row["hit_rate"]
    for workload, cells in found.items():
        needed = {name for rates in cells.values() for name in rates if name in (*TRIO, *STOCK)}
        for sizes, rates in cells.items():
            complete = set.intersection(*(set(rates.get(name, ())) for name in needed))
            kept = {
                name: {seed: rate for seed, rate in by_seed.items() if seed in complete}
                for name, by_seed in rates.items()
            }
            cells[sizes] = {name: by_seed for name, by_seed in kept.items() if by_seed}
        found[workload] = {sizes: rates for sizes, rates in cells.items() if rates}
    return found


def percent(rates: dict[int, float]) -> float:
    """Mean over seeds, in per cent, as shown."""
    return round(100 * fmean(rates.values()), 1)


def spread(rates: dict[int, float]) -> str:
    """The mean, and from where to where the seeds go."""
    values = [100 * rate for rate in rates.values()]
    ends = f" ({min(values):.1f} … {max(values):.1f})" if len(values) > 1 else ""
    return f"{percent(rates):.1f}{ends}"


def worst_loss(rates: Rates) -> float:
    """Points of ours over lru under the seed where that is least, rounded to hundredths."""
    return round(100 * min(rates[OURS][seed] - rates[LRU][seed] for seed in rates[OURS]), 2)


def best(rates: Rates, names: Sequence[str]) -> str:
    """The policy of `names` with the highest mean; the first of equals."""
    return max((name for name in names if name in rates), key=lambda name: fmean(rates[name].values()))


def lead(rates: Rates, other: str) -> float:
    """Mean points of ours over another policy, over the seeds under which that ran."""
    return 100 * fmean(rates[OURS][seed] - rate for seed, rate in rates[other].items())


def gap_closed(rates: Rates) -> float | None:
    """Share of the way from lru to the bound, in per cent of the mean rates; None where there is no way to go."""
    ours, lru, bound = (fmean(rates[name].values()) for name in (OURS, LRU, BOUND))
    return round(100 * (ours - lru) / (bound - lru), 1) if bound - lru >= 5e-4 else None


def verdict(workload: str, capacity: str, rates: Rates) -> tuple[str, str]:
    """(the bar, PASS or MISS): hit rate or gap where one was set, and never below lru under any seed."""
    missed = [] if worst_loss(rates) >= 0 else [f"{worst_loss(rates):+.2f} to lru"]
    bars = []
    if (workload, capacity) in HIT_BARS:
        bar, found = HIT_BARS[workload, capacity], percent(rates[OURS])
        bars.append(f"≥ {bar}")
        missed += [f"{found - bar:+.1f}"] if found < bar else []
    if (workload, capacity) in GAP_BARS:
        bar, found = GAP_BARS[workload, capacity], gap_closed(rates)
        bars.append(f"gap ≥ {bar} %")
        missed += [f"{(found or 0) - bar:+.1f} %"] if (found or 0) < bar else []
    return " and ".join(bars) or "≥ lru", f"MISS ({', '.join(missed)})" if missed else "PASS"


def adversarial_verdict(workload: str, rates: Rates) -> str:
    """Never more than 0.3 points below lru under any seed; the loop within 2 points of the bound."""
    missed = [] if worst_loss(rates) >= -LOSS_POINTS else [f"{worst_loss(rates):+.2f} to lru"]
    behind = round(100 * max(rates[BOUND][seed] - rates[OURS][seed] for seed in rates[OURS]), 2)
    if workload == "loop" and behind > LOOP_POINTS:
        missed.append(f"{-behind:+.2f} to belady")
    return f"MISS ({', '.join(missed)})" if missed else "PASS"
