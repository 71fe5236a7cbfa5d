"""What a terminal shows: a table per trace, and a progress bar. Loads rich only when it is called."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import Any

from radiximp.replay.capacity import tokens_text
from radiximp.replay.run import BOUND, Row

BASELINE = "lru"
# As wide as any table needs: a terminal that is narrower wraps, which loses no figure as cutting would.
_WIDTH = 200
_TEXT_HEADINGS = ("policy", "setting", "")


def percent(rate: float | None) -> str:
    """A rate as a table shows it; "-" where nothing was asked for."""
    return "-" if rate is None else f"{rate:.1%}"


def points(gain: float | None) -> str:
    """A difference of rates, in percentage points."""
    text = "-" if gain is None else f"{100 * gain:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text


def mean(rates: Sequence[float | None]) -> float | None:
    """The mean of those that are known; None if none is."""
    known = [rate for rate in rates if rate is not None]
    return fmean(known) if known else None


def difference(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def simple_table(headings: Sequence[str]) -> Any:
    """An empty rich table: names to the left, numbers to the right, nothing wrapped."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in _TEXT_HEADINGS else "right", no_wrap=True)
    return table


def comparison(groups: dict[tuple[str, str], dict[str, list[Row]]]) -> Any:
    """A rich table: per size its policies, the best marked (the bound is none). groups: (device, host) -> policy -> a row per seed."""
    has_host = any(row.host_capacity_tokens for rows in _rows(groups) for row in rows)
    has_seeds = any(len(rows) > 1 for rows in _rows(groups))
    has_baseline = any(BASELINE in policies and len(policies) > 1 for policies in groups.values())
    headings = (
        ("capacity", True), ("host", has_host), ("policy", True), ("hit rate", True), ("± seeds", has_seeds),
        ("vs lru", has_baseline), ("device", has_host), ("from host", has_host), ("evicted", True),
    )  # fmt: skip
    table = simple_table([heading for heading, is_shown in headings if is_shown])
    for (device, host), policies in groups.items():
        rates = {name: mean([row.hit_rate for row in rows]) for name, rows in policies.items()}
        best = max((rate for name, rate in rates.items() if rate is not None and name != BOUND), default=None)
        for number, (name, rows) in enumerate(policies.items()):
            is_best = len(policies) > 1 and name != BOUND and best is not None and rates[name] == best
            row = rows[0]
            tokens = tokens_text(row.capacity_tokens)
            size = f"{device} = {tokens}" if "%" in device else tokens
            cells = [
                (size if number == 0 else "", True),
                ((host_text(host, row) if number == 0 else ""), has_host),
                (name, True),
                (percent(rates[name]) + ("*" if is_best else " "), True),
                (spread_text(rows), has_seeds),
                (
                    "" if name == BASELINE else points(difference(rates[name], rates.get(BASELINE))),
                    has_baseline,
                ),
                (percent(mean([r.as_json()["device_hit_rate"] for r in rows])), has_host),
                (percent(mean([r.as_json()["host_hit_rate"] for r in rows])), has_host),
                (_evicted_text(rows), True),
            ]
            shown = [text for text, is_shown in cells if is_shown]
            table.add_row(*shown, style="bold" if is_best else None, end_section=number == len(policies) - 1)
    return table


def _evicted_text(rows: Sequence[Row]) -> str:
    evicted = mean([row.evicted_tokens for row in rows])
    return "-" if evicted is None else tokens_text(round(evicted))


def host_text(host: str, row: Row) -> str:
    """The host's size as it was asked for, in tokens."""
    tokens = tokens_text(row.host_capacity_tokens)
    return "none" if row.host_capacity_tokens == 0 else f"{host} = {tokens}" if host[-1] in "%x" else tokens


def spread_text(rows: Sequence[Row]) -> str:
    """Half the distance between the highest and the lowest seed, in points."""
    rates = [row.hit_rate for row in rows if row.hit_rate is not None]
    return f"{50 * (max(rates) - min(rates)):.1f}" if rates else "-"


def show(*parts: Any) -> None:
    """Print to stdout: tables, and text as it is."""
    from rich.console import Console

    console = Console(width=_WIDTH, highlight=False, markup=False)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))


@contextmanager
def progress(text: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on stderr while the block runs; nothing where stderr is no terminal. Yields `advance(amount)`."""
    if not sys.stderr.isatty():
        yield lambda amount: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,.0f} requests"),
        TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=total)
        yield lambda amount: bar.advance(task, amount)


def _rows(groups: dict[tuple[str, str], dict[str, list[Row]]]) -> Iterator[list[Row]]:
    return (rows for policies in groups.values() for rows in policies.values())
