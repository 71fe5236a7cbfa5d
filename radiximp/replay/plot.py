"""Figures of a comparison. Loads matplotlib only when it is called; the extra `plot` installs it."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import Any

from radiximp.replay.files import write_whole
from radiximp.replay.run import Row
from radiximp.replay.table import mean

ENDINGS = (".pdf", ".png", ".svg")
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
        finish_axes(axes, name)
    save(figure, path)


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


def finish_axes(axes: Any, title: str) -> None:
    """Titles, a logarithmic capacity axis in tokens, the legend."""
    from matplotlib.ticker import EngFormatter, NullFormatter

    axes.set_title(title)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_minor_formatter(NullFormatter())
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
