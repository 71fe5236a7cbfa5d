"""Clocks that read the same on every tensor-parallel rank.

A rank's own wall clock never orders victims: ranks would decide differently and their pools diverge.
"""

from __future__ import annotations

import math

ANONYMOUS_STEP_S = 1.0

# A stamp further ahead than this is a machine's clock that jumped, not an hour without a request
# that matters: scores have long decayed by then, and one wrong stamp must not freeze the clock.
MAX_STEP_S = 3600.0


class ArrivalClock:
    """Time in seconds as the latest request arrival seen, carried by the requests themselves.

    A use without an arrival time (a cache driven without a server) moves the clock by one second,
    so that ages stay meaningful and reproducible.
    """

    def __init__(self) -> None:
        self._now_s = 0.0
        self._last_arrival_s: float | None = None
        self.num_arrivals = 0

    def now_s(self) -> float:
        """Seconds since the first arrival; never decreases."""
        return self._now_s

    def observe_arrival(self, arrival_s: float) -> None:
        """Advance to a request's arrival (any epoch, the same on all ranks), by an hour at most.

        A late or non-finite one changes nothing.
        """
        if not math.isfinite(arrival_s):
            return
        if self._last_arrival_s is not None:
            step_s = arrival_s - self._last_arrival_s
            if step_s > 0:
                self._now_s += min(step_s, MAX_STEP_S)
        # A stamp far in the past means that the clock was set back: go on from there.
        if self._last_arrival_s is None or not -MAX_STEP_S < arrival_s - self._last_arrival_s <= 0:
            self._last_arrival_s = arrival_s
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
