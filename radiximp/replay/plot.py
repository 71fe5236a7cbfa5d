"""Figures of a comparison. Loads matplotlib only when it is called; the extra `plot` installs it."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from radiximp.replay.capacity import tokens_text
from radiximp.replay.files import write_whole
from radiximp.replay.planning import Plan, Size
from radiximp.replay.run import BOUND, Row
from radiximp.replay.table import mean

ENDINGS = (".pdf", ".png", ".svg")
_MAX_TICKS = 8
_HOST_LINES = ("-", "--", ":", "-.")


class PlotError(ValueError):
    """A figure that cannot be made."""


def check_plot(path: Path) -> None:
    """Raise PlotError unless a figure of that ending can be made here."""
    if path.suffix not in ENDINGS:
        raise PlotError(f"--plot: expected a name that ends in {', '.join(ENDINGS)}, got {str(path)!r}")
    if importlib.util.find_spec("matplotlib") is None:
        raise PlotError("--plot needs matplotlib: pip install 'radiximp[plot]'")


def plot_comparison(path: Path, traces: dict[str, dict[tuple[str, str], dict[str, list[Row]]]]) -> None:
    """Hit rate against capacity: a panel a trace, a line a policy (and a dash a host size). Raises FileError."""
    figure = new_figure(len(traces))
    for axes, (name, groups) in zip(figure.axes, traces.items(), strict=True):
        hosts = list(dict.fromkeys(host for _, host in groups))
        policies = list(dict.fromkeys(policy for found in groups.values() for policy in found))
        for number, policy in enumerate(policies):
            for host_number, host in enumerate(hosts):
                curve = _curve(groups, policy, host)
                label = policy if len(hosts) == 1 else f"{policy}, host {host if host != '0' else 'none'}"
                line = _HOST_LINES[host_number % len(_HOST_LINES)]
                axes.plot(*curve, line, marker="o", markersize=3, color=f"C{number}", label=label)
        finish_axes(axes, name, [row.capacity_tokens for rows in policies_of(groups) for row in rows])
    save(figure, path)


def plot_plan(path: Path, name: str, plan: Plan) -> None:
    """Left: the smallest host, as a rule none, with the knee and the bound. Right: what each host size adds. Raises FileError."""
    figure = new_figure(2)
    left, right = figure.axes
    ticks = [size.device_tokens for size in plan.sizes]
    for number, policy in enumerate(dict.fromkeys(policy for size in plan.sizes for policy in size.rows)):
        sizes = [size for size in plan.sizes if size.host is plan.chosen.host and policy in size.rows]
        style = "k:" if policy == BOUND else f"C{number}o-"
        label = f"{BOUND} (knows the future)" if policy == BOUND else policy
        left.plot(*_line(sizes, policy), style, markersize=3, label=label)
    if plan.knee is not None:
        left.axvline(plan.knee.device_tokens, color="0.5", linewidth=1)
        left.annotate(f" knee, {tokens_text(round(plan.knee.device_tokens))}", (plan.knee.device_tokens, 1))
    for number, host in enumerate(dict.fromkeys(size.host.text for size in plan.sizes)):
        sizes = [size for size in plan.sizes if size.host.text == host]
        label = "no host" if host == "0" else f"host {host}"
        right.plot(*_line(sizes, "importance"), f"C{number}o-", markersize=3, label=f"importance, {label}")
        right.plot(*_line(sizes, "lru"), f"C{number}x--", markersize=4, label=f"lru, {label}")
    host = f"host {plan.chosen.host.text}" if plan.chosen.has_host else "device only"
    finish_axes(left, f"{name}: {host}", ticks)
    finish_axes(right, f"{name}: device and host", ticks)
    top = max(left.get_ylim()[1], right.get_ylim()[1])
    for axes in (left, right):
        axes.set_ylim(0, top)
    save(figure, path)


def _line(sizes: Sequence[Size], policy: str) -> tuple[list[float], list[float]]:
    known = [size for size in sizes if size.rate(policy) is not None]
    return [size.device_tokens for size in known], [100 * size.rate(policy) for size in known]


def policies_of(groups: dict[tuple[str, str], dict[str, list[Row]]]) -> Iterator[list[Row]]:
    """Every list of rows in the groups of a trace."""
    return (rows for policies in groups.values() for rows in policies.values())


def _curve(
    groups: dict[tuple[str, str], dict[str, list[Row]]], policy: str, host: str
) -> tuple[list[float], list[float]]:
    found = []
    for (_, host_of_group), policies in groups.items():
        rows = policies.get(policy, ()) if host_of_group == host else ()
        rate = mean([row.hit_rate for row in rows])
        if rate is not None:
            found.append((mean([row.capacity_tokens for row in rows]), 100 * rate))
    found.sort()
    return [tokens for tokens, _ in found], [rate for _, rate in found]


def new_figure(num_panels: int) -> Any:
    """A figure with panels side by side, drawn without a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5 * num_panels, 4), layout="constrained")
    FigureCanvasAgg(figure)
    figure.subplots(1, num_panels, squeeze=False)
    return figure


def finish_axes(axes: Any, title: str, capacities: Sequence[float]) -> None:
    """Titles, a logarithmic axis with a tick at each capacity in tokens, the legend."""
    axes.set_title(title.replace("$", r"\$"))  # not a formula
    axes.set_xscale("log")
    ticks = sorted(set(capacities))
    ticks = ticks[:: -(-len(ticks) // _MAX_TICKS)]
    axes.set_xticks(ticks, [tokens_text(round(tick)) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("device capacity (tokens)")
    axes.set_ylabel("prompt tokens found (%)")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def save(figure: Any, path: Path) -> None:
    """Write the figure whole, in the format its name ends in. Raises FileError."""
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix[1:], dpi=150)
    write_whole(path, content.getvalue())
