"""Three drawings of a setup and its tiers, each on axes that the caller made; imports no drawing library.

Seconds over context, a phase diagram of context and bandwidth, and the storage pyramid with where each level wins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from radiximp.cost.breakeven import Setup
from radiximp.cost.formulas import K_TOKENS
from radiximp.cost.specs import Tier

_LEAST_K, _MOST_K = 1, 16384  # a crossing beyond is told, not drawn
_FETCH_COLOR, _RECOMPUTE_COLOR = "#d5e8d4", "#f8d9d0"
_LIMIT_LINE = {"color": "0.5", "linestyle": ":", "linewidth": 1.5}
_LABEL_GAP = 0.05  # of the height of the axes
_PYRAMID_WIDTH = 0.4  # of the panel; the arrows have the rest


def k_text(tokens: float) -> str:
    """Tokens in K of 1,024, as all figures and tables here say them."""
    found = tokens / K_TOKENS
    if found == round(found) or found >= 10_000:
        return f"{found:,.0f}K"
    return f"{found:,.1f}K" if found >= 1 else f"{found:.2g}K"


def draw_tiers(axes: Any, setup: Setup, tiers: Sequence[Tier]) -> None:
    """Seconds to have a context: a line a tier, the prefill in black, a dot where they cross."""
    contexts = _contexts(setup, tiers)
    axes.plot(contexts, setup.prefill.seconds(contexts), "k", linewidth=2, label="recompute (prefill)")
    num_bytes = setup.state.num_bytes(contexts)
    for number, tier in enumerate(tiers):
        fetch_s = setup.transfer(tier).seconds(num_bytes)
        axes.plot(contexts, fetch_s, color=f"C{number}", label=f"fetch: {_tier_text(tier)}")
        _mark_crossing(axes, setup, tier, number, setup.prefill.seconds)
    limit = setup.model.max_context_tokens
    if limit is not None:
        axes.axvline(limit, **_LIMIT_LINE, label=f"the model's limit, {k_text(limit)}")
    axes.set_yscale("log")
    axes.set_ylabel("time to have the context (s)")
    _finish(axes, "Fetch or recompute", contexts)
    axes.legend(fontsize="small", loc="upper left")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** 0.35)  # room for the legend


def draw_phases(axes: Any, setup: Setup, tiers: Sequence[Tier]) -> None:
    """The plane of context and bandwidth in two regions; the border is the least bandwidth at which a fetch wins."""
    contexts = _contexts(setup, tiers)
    border = np.array([setup.min_bandwidth_gbps(context) or math.inf for context in contexts])
    known = [*border[np.isfinite(border)], *(tier.bandwidth_gbps for tier in tiers)]
    low, high = min(known) / 4, max(known) * 4
    line = np.clip(border, low, high)
    axes.fill_between(contexts, line, high, color=_FETCH_COLOR)
    axes.fill_between(contexts, low, line, color=_RECOMPUTE_COLOR)
    axes.plot(contexts, np.where(border < high, border, np.nan), "k", linewidth=2)
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    for number, tier in enumerate(tiers):
        axes.axhline(tier.bandwidth_gbps, color=f"C{number}", linewidth=1)
        _mark_crossing(axes, setup, tier, number, lambda _, tier=tier: tier.bandwidth_gbps)
    _label_tiers(axes, tiers)
    if setup.model.max_context_tokens is not None:
        axes.axvline(setup.model.max_context_tokens, **_LIMIT_LINE)
    axes.set_ylabel("bandwidth (GB/s, peak)")
    _finish(axes, "Which is faster", contexts)
    box = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 2}
    left, right = np.log(line[[0, -1]] / low) / math.log(high / low)  # the border's height in the axes
    if right < 0.7:
        axes.text(0.97, 0.75, "fetch is faster", transform=axes.transAxes, ha="right", bbox=box)
    if left > 0.1:
        axes.text(0.03, 0.03, "recompute is faster", transform=axes.transAxes, ha="left", bbox=box)


def draw_pyramid(axes: Any, setup: Setup, tiers: Sequence[Tier]) -> None:
    """The tiers as levels, fastest on top, and beside each an arrow over the contexts at which its fetch wins."""
    contexts = _contexts(setup, tiers)
    ordered = sorted(enumerate(tiers), key=lambda found: -found[1].bandwidth_gbps)
    num_levels = len(ordered)
    start, end = math.log(contexts[0]), math.log(contexts[-1])

    def across(tokens: float) -> float:
        return _PYRAMID_WIDTH + 0.06 + (0.94 - _PYRAMID_WIDTH) * (math.log(tokens) - start) / (end - start)

    for level, (number, tier) in enumerate(ordered):
        bottom = num_levels - level - 1
        _draw_level(axes, tier, number, level, num_levels)
        crossing = setup.crossing_tokens(tier)
        begin = across(min(max(crossing or 0, contexts[0]), contexts[-1]))
        if begin < 1:
            arrow = {"arrowstyle": "->", "color": f"C{number}", "linewidth": 2}
            axes.annotate("", (1, bottom + 0.4), (begin, bottom + 0.4), arrowprops=arrow)
        text = "from the first token" if crossing is None else f"from {k_text(crossing)}"
        is_left = begin < across(math.sqrt(contexts[0] * contexts[-1]))
        place = (begin, "left") if is_left else (1, "right")
        axes.text(place[0], bottom + 0.55, text, ha=place[1], fontsize="small")
    axes.set_xlim(0, 1.02)
    axes.set_ylim(0, num_levels)
    ticks = _ticks(contexts, num_most=4)
    axes.set_xticks([across(tick) for tick in ticks], [k_text(tick) for tick in ticks])
    axes.set_yticks([])
    axes.spines[["left", "right", "top"]].set_visible(False)
    axes.set_title("Where each level is worth its fetch")
    axes.set_xlabel("context (tokens, 1K = 1,024)", loc="right")


def _draw_level(axes: Any, tier: Tier, number: int, level: int, num_levels: int) -> None:
    """A slice of the pyramid; the top is half as wide as the foot, so that a name fits."""
    middle, bottom = _PYRAMID_WIDTH / 2, num_levels - level - 1
    half_top, half_bottom = (middle * (0.5 + 0.5 * depth / num_levels) for depth in (level, level + 1))
    x = [middle - half_top, middle + half_top, middle + half_bottom, middle - half_bottom]
    y = [bottom + 1, bottom + 1, bottom, bottom]
    axes.fill(x, y, facecolor=f"C{number}", edgecolor="white", alpha=0.45)
    axes.text(middle, bottom + 0.5, _tier_text(tier, "\n"), ha="center", va="center", fontsize="small")


def title(setup: Setup) -> str:
    """What the drawings assume, in one line."""
    state = " and linear state" if setup.has_linear_state else ""
    causal = ", causal attention at half" if setup.is_causal else ""
    wait = f", latency {1000 * setup.latency_s:g} ms" if setup.latency_s else ""
    kv = {1: "FP8", 2: "BF16"}[setup.kv_bytes_per_element]
    return (
        f"{setup.model.name} on {setup.num_gpus} x {setup.gpu.name}: MFU {setup.mfu:g}, "
        f"bandwidth utilisation {setup.bw_util:g}, {kv} KV{state}{causal}{wait}"
    )


def _tier_text(tier: Tier, space: str = " ") -> str:
    return f"{tier.name},{space}{tier.bandwidth_gbps:g} GB/s".replace("$", r"\$")


def _contexts(setup: Setup, tiers: Sequence[Tier]) -> np.ndarray:
    """Contexts from 1K to beyond the model's limit, 1024K and, up to 16,384K, every crossing."""
    crossings = [setup.crossing_tokens(tier) or 0 for tier in tiers]
    end = max(1024 * K_TOKENS, setup.model.max_context_tokens or 0, 4 * max(crossings))
    return np.geomspace(_LEAST_K * K_TOKENS, min(end, _MOST_K * K_TOKENS), 256)


def _ticks(contexts: np.ndarray, num_most: int = 7) -> list[int]:
    """Powers of two, evenly spaced, at most so many."""
    last = int(math.log2(contexts[-1] / contexts[0]) + 1e-9)
    step = -(-(last + 1) // num_most)
    return [K_TOKENS * 2**power for power in range(0, last + 1, step)]


def _mark_crossing(
    axes: Any, setup: Setup, tier: Tier, number: int, height: Callable[[float], float]
) -> None:
    """A dot where a fetch begins to win, at that context's height; the pyramid has the figure to it."""
    crossing = setup.crossing_tokens(tier)
    if crossing is not None and crossing >= _LEAST_K * K_TOKENS:
        axes.plot(crossing, height(crossing), "o", color=f"C{number}", zorder=3)


def _label_tiers(axes: Any, tiers: Sequence[Tier]) -> None:
    """Names to the right of the axes at the height of their lines, moved apart where they would touch."""
    low, high = (math.log(limit) for limit in axes.get_ylim())
    ordered = sorted(enumerate(tiers), key=lambda found: found[1].bandwidth_gbps)
    places: list[float] = []
    for _, tier in ordered:
        place = (math.log(tier.bandwidth_gbps) - low) / (high - low)
        places.append(max(place, places[-1] + _LABEL_GAP) if places else place)
    highest = 1.0
    for level, (number, tier) in reversed(list(enumerate(ordered))):
        place = min(places[level], highest)
        highest = place - _LABEL_GAP
        axes.text(
            1.01, place, _tier_text(tier), transform=axes.transAxes, va="center", color=f"C{number}",
            fontsize="small",
        )  # fmt: skip


def _finish(axes: Any, heading: str, contexts: np.ndarray) -> None:
    ticks = _ticks(contexts)
    axes.set_title(heading)
    axes.set_xscale("log")
    axes.set_xlim(contexts[0], contexts[-1])
    axes.set_xticks(ticks, [k_text(tick) for tick in ticks])
    axes.tick_params(axis="x", which="minor", bottom=False)
    axes.set_xlabel("context (tokens, 1K = 1,024)")
    axes.grid(alpha=0.3)
