"""Counts of one tree core in plain Python numbers: what happened to requests, tokens and time. Never ranks, never reset.

Owned by the scheduler thread. Wall-clock times are measured here and go to people only, never into a decision.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from time import perf_counter

TIERS = ("device", "host", "storage")
USER, WARM = CALLERS = ("user", "warm")
# device, demoted: the host has a copy. dropped: no tier of this server has it any more. duplicate: the device still has it.
EVICTIONS = (("device", "demoted"), ("device", "dropped"), ("host", "dropped"), ("host", "duplicate"))
PHASES = ("settle", "choose", "observe", "what_if")
GAP_EDGES_S = (1.0, 4.0, 15.0, 60.0, 240.0, 900.0, 3600.0, 14400.0)
DENSITY_EDGES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


class Buckets:
    """A histogram: counts per bucket, the last one beyond all edges, and the sum of what was counted."""

    __slots__ = ("edges", "counts", "sum")

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.sum = 0.0

    def add(self, value: float, weight: int = 1) -> None:
        """Count `value` that many times; a bucket includes its upper edge."""
        self.counts[bisect_left(self.edges, value)] += weight
        self.sum += value * weight


class Stopwatch:
    """`with` it: the seconds of the block are added to a phase. Used again and again, as a generator costs more."""

    __slots__ = ("_phase", "_phase_s", "_started")

    def __init__(self, phase_s: Counter[str], phase: str) -> None:
        self._phase_s, self._phase, self._started = phase_s, phase, 0.0

    def __enter__(self) -> None:
        self._started = perf_counter()

    def __exit__(self, *error: object) -> None:
        self._phase_s[self._phase] += perf_counter() - self._started


class Tally:
    """All counters grow only."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.prompt_tokens: Counter[str] = Counter()
        self.hit_tokens: Counter[tuple[str, str]] = Counter()
        self.evicted_tokens: Counter[tuple[str, str]] = Counter()
        self.wanted_tokens = 0
        self.reuse_gap_s = Buckets(GAP_EDGES_S)
        self.density = Buckets(DENSITY_EDGES)
        self.phase_s: Counter[str] = Counter()
        self._stopwatches = {phase: Stopwatch(self.phase_s, phase) for phase in PHASES}

    def count_request(self, caller: str, prompt_tokens: int, hits: dict[str, int]) -> None:
        """A request ended; hits: tokens of its prompt by the tier where they were found."""
        self.requests[caller] += 1
        self.prompt_tokens[caller] += prompt_tokens
        for tier, num_tokens in hits.items():
            self.hit_tokens[tier, caller] += num_tokens

    def count_return(self, gap_s: float, num_tokens: int) -> None:
        """Tokens were used again after lying idle for `gap_s`."""
        self.reuse_gap_s.add(gap_s, num_tokens)

    def timing(self, phase: str) -> Stopwatch:
        """A block that adds its seconds to a phase. Blocks of one phase must not nest."""
        return self._stopwatches[phase]
