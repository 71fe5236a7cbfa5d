"""The studies as Markdown: what each piece of the policy brings, and how much its settings matter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from eval.replay_tables.plan import OURS, varied_value
from eval.replay_tables.tables import header, table
from eval.replay_tables.workloads import title

MAX_MOVE_POINTS = 1.0
Cell = tuple[str, str]  # workload, capacity


def by_change(rows: Iterable[dict[str, Any]], change_of) -> dict[Any, dict[Cell, float]]:
    """change -> cell -> hit rate in per cent."""
    found: dict[Any, dict[Cell, float]] = {}
    for row in rows:
        cell = (row["workload"], row["capacity"])
        found.setdefault(change_of(row), {})[cell] = 100 * row["hit_rate"]
    return found


def _change(row: dict[str, Any]) -> str:
    settings = ", ".join(f"`{name}` {value:g}" for name, value in row["settings"].items())
    return row["variant"] or settings or row["policy"]


def ablation(document: dict[str, Any]) -> str:
    """A row per variant: points to the policy as it is, at each size."""
    lines = header(
        document,
        "What each piece brings",
        "First rates in %, then points to `importance` as it is: below 0, the piece brings that much. A feature is taken away by giving it one "
        "value; `ghost_factor` and `trim_tokens` at 0 switch the piece off. The objectives run without the guard, which would hide what they lose: compare them with `no guard`.",
    )
    found = by_change(document["rows"], _change)
    base = found.get(OURS, {})
    cells = list(base)
    rows = []
    for name, rates in found.items():
        is_rate = name in (OURS, "lru", "belady")
        shown = [
            "-"
            if cell not in rates
            else f"{rates[cell]:.1f}"
            if is_rate
            else f"{rates[cell] - base[cell]:+.1f}"
            for cell in cells
        ]
        rows.append([f"**{name}**" if is_rate else name, *shown])
    headings = ("", *(f"{title(workload).split(',')[0]} {capacity}" for workload, capacity in cells))
    return "\n".join(lines + table(headings, rows)) + "\n"


def sensitivity(document: dict[str, Any]) -> str:
    """A row per setting and factor: the largest move of any size."""
    lines = header(
        document,
        "Settings four times as large and as small",
        "Every numeric setting that the policy reads in a replay, within its range. Moves in points of hit rate; "
        f"MISS: some size moves by more than {MAX_MOVE_POINTS:g}.",
    )
    found = by_change(document["rows"], lambda row: tuple(row["settings"].items()))
    base = found.pop((), {})
    rows = []
    for ((setting, value),), rates in found.items():
        moves = {cell: rate - base[cell] for cell, rate in rates.items() if cell in base}
        largest = max(moves, key=lambda cell: abs(moves[cell]))
        rows.append([
            f"`{setting}`", f"{varied_value(setting, 1):g}", f"{value:g}", *(f"{moves[cell]:+.2f}" if cell in moves else "-" for cell in base),
            "PASS" if round(abs(moves[largest]), 2) <= MAX_MOVE_POINTS else "MISS",
        ])  # fmt: skip
    headings = ("setting", "default", "value", *(f"{title(w).split(',')[0]} {c}" for w, c in base), "")
    return "\n".join(lines + table(headings, rows)) + "\n"
