"""What `radiximp tune` prints of a plan: its sizes, its knee, its settings."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from radiximp.replay.capacity import tokens_text
from radiximp.replay.planning import BASELINE, OURS, Plan
from radiximp.replay.run import BOUND
from radiximp.replay.table import difference, host_text, mean, percent, points, simple_table
from radiximp.replay.tuning import Verdict


def sizes_table(plan: Plan, prefill_tokens_per_s: float) -> Any:
    """Hit rates by tier and saved prefill seconds, a row per size; the knee is marked."""
    has_bound = any(BOUND in size.rows for size in plan.sizes)
    headings = [
        "device",
        "host",
        "lru",
        "importance",
        "(device",
        "+ host)",
        "gain",
        "saved by lru",
        "by importance",
    ]
    found = simple_table([*headings, *(["belady"] if has_bound else [])])
    for number, size in enumerate(plan.sizes):
        row = size.rows[OURS][0]
        tokens = tokens_text(row.capacity_tokens)
        is_knee = size is plan.knee
        cells = [
            (f"{size.device.text} = {tokens}" if size.device.unit else tokens) + (" <" if is_knee else "  "),
            host_text(size.host.text, row),
            percent(size.rate(BASELINE)),
            percent(size.rate(OURS)),
            percent(mean([row.as_json()["device_hit_rate"] for row in size.rows[OURS]])),
            percent(mean([row.as_json()["host_hit_rate"] for row in size.rows[OURS]])),
            points(difference(size.rate(OURS), size.rate(BASELINE))),
            *(
                f"{fmean(row.hit_tokens for row in size.rows[policy]) / prefill_tokens_per_s:,.0f} s"
                for policy in (BASELINE, OURS)
            ),
            *([percent(size.rate(BOUND))] if has_bound else []),
        ]
        is_last = number + 1 == len(plan.sizes) or plan.sizes[number + 1].device is not size.device
        found.add_row(*cells, style="bold" if is_knee else None, end_section=is_last)
    return found


def knee_text(plan: Plan) -> str:
    """Where the curve bends, in one sentence."""
    if plan.knee is None:
        at = tokens_text(round(plan.chosen.device_tokens))
        return f"no knee: the curve of importance does not bend; settings are tried at {at} tokens"
    tokens, rate = tokens_text(round(plan.knee.device_tokens)), percent(plan.knee.rate(OURS))
    host = f" beside a host of {plan.knee.host.text}" if plan.knee.has_host else ""
    return (
        f"knee (<): {tokens} tokens on the device{host}, {rate} found by importance; "
        "farthest above the chord on log capacity"
    )


def settings_table(verdicts: Sequence[Verdict]) -> Any:
    """What each setting gained, with what the noise was read from."""
    found = simple_table(["setting", "from", "to", "gain", "noise", "seeds or quarters", ""])
    for verdict in verdicts:
        found.add_row(
            verdict.setting,
            f"{verdict.default:g}",
            f"{verdict.value:g}",
            points(verdict.gain),
            "-" if verdict.noise is None else f"{100 * verdict.noise:.1f}",
            " ".join(points(sample) for sample in verdict.samples),
            "worth changing" if verdict.is_worth_changing else "",
        )
    return found
