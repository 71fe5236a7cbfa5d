"""Capacity planning over one trace: device sizes x host sizes, lru against importance, and what settings change.

Called by `radiximp tune`; what a curve or a gain means is in `tuning.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from radiximp.config import PolicyConfig
from radiximp.replay import tuning
from radiximp.replay.capacity import Capacity, CapacityError, tokens_text
from radiximp.replay.grid import Cell, Source
from radiximp.replay.run import BOUND, Row
from radiximp.replay.survey import Survey
from radiximp.replay.table import difference, host_text, mean, percent, points, simple_table

OURS, BASELINE = "importance", "lru"
NOTES = (
    "Saved seconds are hit tokens / the stated prefill rate; copying from the host back is not priced.",
    "The noise of a gain is its spread over the seeds, or with one seed between the halves of the trace.",
)

# (cells, processes) -> a row per cell
Runner = Callable[[list[Cell], int], list[Row]]


@dataclass(frozen=True, slots=True)
class Size:
    """One device and host size, as asked for; rows: policy -> a row per seed."""

    device: Capacity
    host: Capacity
    rows: dict[str, list[Row]]

    @property
    def has_host(self) -> bool:
        """Whether there is a second tier."""
        return self.host.amount > 0

    @property
    def device_tokens(self) -> float:
        """Mean over the seeds: a share of the distinct pages differs between them."""
        return fmean(row.capacity_tokens for row in self.rows[OURS])

    def rate(self, policy: str) -> float | None:
        """The mean hit rate over the seeds; None where it was not replayed or nothing was asked for."""
        return mean([row.hit_rate for row in self.rows.get(policy, ())])


@dataclass(frozen=True, slots=True)
class Plan:
    """All sizes, by device then host. knee: of importance without a host, or None; chosen: where settings are tried."""

    sizes: list[Size]
    knee: Size | None
    chosen: Size


@dataclass(frozen=True)
class Grid:
    """What every cell of a plan has in common."""

    source: Source
    surveys: dict[int, Survey]
    config: PolicyConfig
    warmup: float
    write_policy: str
    pin_running: bool

    def sizes(
        self, devices: Sequence[Capacity], hosts: Sequence[Capacity], skip_small: bool
    ) -> list[tuple[Capacity, Capacity]]:
        """The pairs worth a replay: none beside a device that holds all, no host above one that holds all.

        skip_small: leave out devices under one page instead of raising CapacityError.
        """
        survey = next(iter(self.surveys.values()))
        found = []
        for device in devices:
            try:
                device_pages = min(device.pages(each, self.source.name) for each in self.surveys.values())
            except CapacityError:
                if not skip_small:
                    raise
                continue
            holds_all = device_pages >= survey.num_distinct_pages
            for host in hosts:
                if holds_all and host.amount and len(hosts) > 1:
                    break
                found.append((device, host))
                holds_all |= host.pages(survey, self.source.name, device_pages) >= survey.num_distinct_pages
        if not found:
            raise CapacityError(f"{self.source.name}: too small for the default sizes; give --device")
        return found

    def plan(self, sizes: Sequence[tuple[Capacity, Capacity]], run: Runner, num_processes: int) -> Plan:
        """Replays every size under each policy. Raises TraceError and CapacityError."""
        keys = [
            (size, policy, seed)
            for size in sizes
            for policy in (BASELINE, OURS, BOUND)
            for seed in self.surveys
            if policy != BOUND or not (self.pin_running or size[1].amount)
        ]
        rows = run(
            [self.cell(*size, policy, self.config, seed) for size, policy, seed in keys], num_processes
        )
        found = {size: Size(*size, {}) for size in sizes}
        for (size, policy, _), row in zip(keys, rows, strict=True):
            found[size].rows.setdefault(policy, []).append(row)
        ordered = sorted(
            found.values(), key=lambda size: (size.device_tokens, size.rows[OURS][0].host_capacity_tokens)
        )
        curve = [size for size in ordered if not size.has_host] or ordered
        index = tuning.knee([size.device_tokens for size in curve], [size.rate(OURS) for size in curve])
        return Plan(
            ordered,
            None if index is None else curve[index],
            curve[(len(curve) - 1) // 2 if index is None else index],
        )

    def verdicts(self, plan: Plan, run: Runner, num_processes: int) -> list[tuning.Verdict]:
        """Tries each setting at the chosen size. Raises TraceError."""
        page_tokens = next(iter(self.surveys.values())).page_tokens
        tried = list(tuning.variants(self.config, page_tokens))
        size = plan.chosen
        cells = [
            self.cell(size.device, size.host, OURS, config, seed)
            for _, _, config in tried
            for seed in self.surveys
        ]
        rows = run(cells, num_processes) if cells else []
        num_seeds = len(self.surveys)
        return [
            tuning.judged(
                key, value, getattr(self.config, key),
                rows[number * num_seeds : (number + 1) * num_seeds], size.rows[OURS],
            )
            for number, (key, value, _) in enumerate(tried)
        ]  # fmt: skip

    def cell(self, device: Capacity, host: Capacity, policy: str, config: PolicyConfig, seed: int) -> Cell:
        """One replay."""
        survey = self.surveys[seed]
        device_pages = device.pages(survey, self.source.name)
        return Cell(
            self.source, seed, policy, config, device_pages, host.pages(survey, self.source.name, device_pages),
            survey.num_requests, survey.num_warmup(self.warmup), self.write_policy, self.pin_running,
        )  # fmt: skip


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
    return (
        f"knee (<): {tokens} tokens on the device, {rate} found by importance; "
        "farthest above the chord on log capacity"
    )


def settings_table(verdicts: Sequence[tuning.Verdict]) -> Any:
    """What each setting gained, with what the noise was read from."""
    found = simple_table(["setting", "from", "to", "gain", "noise", "seeds or halves", ""])
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
