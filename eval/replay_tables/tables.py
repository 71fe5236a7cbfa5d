"""The comparisons as Markdown, with the bar of every cell beside it: what a result file says and no more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from eval.replay_tables.plan import LRU, OURS, STOCK, TRIO
from eval.replay_tables.verdicts import (
    LOOP_POINTS,
    LOSS_POINTS,
    Rates,
    Sizes,
    adversarial_verdict,
    best,
    gap_closed,
    grouped,
    lead,
    percent,
    spread,
    verdict,
    worst_loss,
)
from eval.replay_tables.workloads import TEXT, title
from radiximp.replay.run import BOUND


def header(document: dict[str, Any], title_text: str, *notes: str) -> list[str]:
    """What a table is, what made it, and how much of it ran."""
    part, rows = document["part"], document["rows"]
    cut = "" if len(rows) == document["cells"] else f", {document['cells'] - len(rows)} left out"
    cut += f", {document['stale']} found by earlier code" if document["stale"] else ""
    versions = ", ".join(dict.fromkeys(row["version"] for row in rows)) or "-"
    return [
        f"# {title_text}", "",
        f"`python -m eval.replay_tables --part {part}`: {len(rows)} of {document['cells']} cells{cut} (code {versions}); prompt tokens found "
        f"cached in %, over the last {1 - document['warmup']:.0%} of the requests.", "", *notes, "",
    ]  # fmt: skip


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    return [
        f"| {' | '.join(headings)} |",
        "|" + "---|" * len(headings),
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def headline(document: dict[str, Any], is_short: bool = False) -> list[str]:
    """One row per trace and size: lru, the best others, ours, the bound and the bar; in short, without the text traces."""
    lines = []
    for workload, cells in grouped(document["rows"]).items():
        if is_short and workload in TEXT:
            continue
        for (capacity, *_), rates in cells.items():
            others = [name for name in rates if name not in (*TRIO, *STOCK)]
            stock = best(rates, STOCK) if len(rates) > len(TRIO) else ""
            other = best(rates, others) if others else ""
            closed = gap_closed(rates)
            lines.append([
                title(workload), capacity, f"{percent(rates[LRU]):.1f}",
                f"{percent(rates[stock]):.1f} {stock}" if stock else "-", f"**{spread(rates[OURS])}**",
                f"{lead(rates, other):+.1f} {other}" if other else "-", f"{percent(rates[BOUND]):.1f}",
                "-" if closed is None else f"{closed:.1f} %", *verdict(workload, capacity, rates),
            ])  # fmt: skip
    headings = ("trace", "capacity", "lru", "best stock", "importance (seeds)", "over best other", "belady", "gap closed", "bar", "")  # fmt: skip
    return table(headings, lines)


def main(document: dict[str, Any]) -> str:
    """`headline`, then every policy."""
    lines = header(
        document,
        "Public traces, one tier, nothing pinned",
        "Capacities are shares of the trace's distinct pages, or tokens. `belady` knows the future. A bar that names a gap asks for a "
        "share of the way from lru to belady; below lru under any seed is a MISS everywhere. *Over best other*: the lead, in points, over "
        "the best policy that SGLang does not have, under the seeds under which that ran. Where the agents' bars for the two smallest "
        "capacities and for 1M meet (all sessions), the stricter is taken.",
    )
    lines += headline(document)
    for workload, cells in grouped(document["rows"]).items():
        if workload not in TEXT:
            lines += ["", f"## {title(workload)}: every policy, first seed", "", "▼: below lru.", ""]
            lines += every_policy(cells)
    return "\n".join(lines) + "\n"


def every_policy(cells: dict[Sizes, Rates]) -> list[str]:
    """A row per policy, a column per size, losses to lru marked; first seed."""
    names = dict.fromkeys(name for rates in cells.values() for name in rates)

    def shown(rates: Rates, name: str) -> str:
        if 0 not in rates.get(name, ()):
            return "-"
        rate, lru = (round(100 * rates[key][0], 1) for key in (name, LRU))
        return f"{rate:.1f}{' ▼' if rate < lru else ''}"

    rows = ([name, *(shown(rates, name) for rates in cells.values())] for name in names)
    return table(("policy", *(sizes[0] for sizes in cells)), rows)


def adversarial_summary(document: dict[str, Any]) -> list[str]:
    """One row per trace: points over lru at each size, and the least of any size and seed."""
    found = grouped(document["rows"])
    sizes = list(dict.fromkeys(size for cells in found.values() for size in cells))
    lines = []
    for workload, cells in found.items():
        gains = [
            f"{percent(cells[size][OURS]) - percent(cells[size][LRU]):+.1f}" if size in cells else "-"
            for size in sizes
        ]
        verdicts = [adversarial_verdict(workload, rates) for rates in cells.values()]
        missed = sum(text != "PASS" for text in verdicts)
        worst = min((worst_loss(rates) for rates in cells.values()), default=0.0)
        lines.append([workload, *gains, f"{worst:+.2f}", f"{missed} MISS" if missed else "PASS"])
    return table(("trace", *(size[0] for size in sizes), "worst size and seed", ""), lines)


def adversarial(document: dict[str, Any]) -> str:
    """`adversarial_summary`, then each size."""
    lines = header(
        document,
        "Traces made to hurt",
        f"Capacities are shares of a 2,000-page working set. MISS: more than {LOSS_POINTS} points below lru under any seed, or the loop "
        f"more than {LOOP_POINTS:g} points below belady. First the points of importance over lru, then each size.",
    )
    lines += [*adversarial_summary(document), ""]
    lines += table(
        ("trace", "capacity", "lru", "importance (seeds)", "belady", "worst seed to lru", ""),
        (
            [workload, capacity, f"{percent(rates[LRU]):.1f}", spread(rates[OURS]), f"{percent(rates[BOUND]):.1f}",
             f"{worst_loss(rates):+.2f}", adversarial_verdict(workload, rates)]
            for workload, cells in grouped(document["rows"]).items()
            for (capacity, *_), rates in cells.items()
        ),
    )  # fmt: skip
    return "\n".join(lines) + "\n"


def pinned(document: dict[str, Any]) -> str:
    """Two tiers: ours beside lru and the best stock policy."""
    lines = header(
        document,
        "Two tiers, running requests pinned",
        f"Hits on either tier. The host holds 1x or 2x the device. MISS: more than {LOSS_POINTS} points below lru. The last column but one "
        "is the margin over the best stock policy of the cell, in points.",
    )
    rows = []
    for workload, cells in grouped(document["rows"]).items():
        for (capacity, host, write_policy), rates in cells.items():
            stock = best(rates, STOCK)
            loss = worst_loss(rates)
            rows.append([
                title(workload), capacity, host, write_policy, f"{percent(rates[LRU]):.1f}",
                f"{percent(rates[stock]):.1f} {stock}", f"**{spread(rates[OURS])}**", f"{loss:+.2f}",
                f"{percent(rates[OURS]) - percent(rates[stock]):+.1f}", "PASS" if loss >= -LOSS_POINTS else "MISS",
            ])  # fmt: skip
    headings = ("trace", "device", "host", "write policy", "lru", "best stock", "importance", "to lru", "to best stock", "")  # fmt: skip
    return "\n".join(lines + table(headings, rows)) + "\n"
