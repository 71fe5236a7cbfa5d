"""Clocks that read the same on every tensor-parallel rank.

A rank's own wall clock never orders victims: ranks would decide differently and their pools diverge.
"""

from __future__ import annotations

ANONYMOUS_STEP_S = 1.0


class ArrivalClock:
    """Time in seconds as the latest request arrival seen, carried by the requests themselves.

    A use without an arrival time (a cache driven without a server) moves the clock by one second,
    so that ages stay meaningful and reproducible.
    """

    def __init__(self) -> None:
        self._now_s = 0.0
        self._origin_s: float | None = None
        self.num_arrivals = 0

    def now_s(self) -> float:
        """Seconds since the first arrival; never decreases."""
        return self._now_s

    def observe_arrival(self, arrival_s: float) -> None:
        """Advance to a request's arrival time (any epoch, the same on all ranks); late ones change nothing."""
        if self._origin_s is None:
            self._origin_s = arrival_s - self._now_s
        self._now_s = max(self._now_s, arrival_s - self._origin_s)
        self.num_arrivals += 1

    def step(self) -> float:
        """The time of a use that carries no arrival: one second later, unless arrivals set the pace."""
        if self.num_arrivals == 0:
            self._now_s += ANONYMOUS_STEP_S
        return self._now_s


class ManualClock:
    """A clock that a test or a replay sets by hand."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s

    def now_s(self) -> float:
        """The time last set, in seconds."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds` >= 0."""
        self._now_s += seconds

    def observe_arrival(self, arrival_s: float) -> None:
        """Ignored: the owner moves this clock."""

    def step(self) -> float:
        """The time last set: only the owner moves this clock."""
        return self._now_s
