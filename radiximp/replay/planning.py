"""Capacity planning over one trace: device sizes x host sizes, lru against importance, and what settings change.

Called by `radiximp tune`; what a curve or a gain means is in `tuning.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from radiximp.config import PolicyConfig
from radiximp.replay import tuning
from radiximp.replay.capacity import Capacity, CapacityError
from radiximp.replay.grid import Cell, Source
from radiximp.replay.run import BOUND, Row
from radiximp.replay.survey import Survey
from radiximp.replay.table import mean

OURS, BASELINE = "importance", "lru"
NOTES = (
    "Saved seconds are hit tokens / the stated prefill rate; copying from the host back is not priced.",
    "The noise of a gain is its spread over the seeds, or with one seed over the quarters of the trace.",
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
    """All sizes, by device then host. chosen: where settings are tried.

    knee: of importance beside the smallest host (as a rule none), or None.
    """

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
        """The pairs worth a replay: beside a device or a host that holds all, no larger host.

        skip_small: leave out devices under one page instead of raising CapacityError.
        """
        found = []
        for device in devices:
            try:
                device_pages = [device.pages(survey, self.source.name) for survey in self.surveys.values()]
            except CapacityError:
                if not skip_small:
                    raise
                continue
            host_pages = {
                host: [
                    host.pages(survey, self.source.name, pages)
                    for survey, pages in zip(self.surveys.values(), device_pages, strict=True)
                ]
                for host in hosts
            }
            holds_all = self._holds_all(device_pages)
            for number, host in enumerate(sorted(hosts, key=host_pages.__getitem__)):
                if holds_all and number:
                    break
                found.append((device, host))
                holds_all |= self._holds_all(host_pages[host])
        if not found:
            raise CapacityError(f"{self.source.name}: too small for the default sizes; give --device")
        return found

    def _holds_all(self, num_pages: Sequence[int]) -> bool:
        surveys = self.surveys.values()
        return all(
            pages >= survey.num_distinct_pages for pages, survey in zip(num_pages, surveys, strict=True)
        )

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
        host = ordered[0].host  # the smallest, as a rule none
        curve = [size for size in ordered if size.host is host]
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
