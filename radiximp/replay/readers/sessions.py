"""Start times for sessions that were recorded without any, or one after another: modelled, from the seed alone.

A session's place in the choice and in time depends on (seed, its index) and on nothing else: a larger
`sessions` adds sessions and moves none.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from radiximp.replay.readers.base import Options

DEFAULT_HOURS = 4.0


def hours_of(options: Options) -> float:
    """The hours that the start times are spread over; requests after them are not replayed."""
    return DEFAULT_HOURS if options.hours is None else options.hours


def session_starts(indices: Sequence[int], options: Options) -> list[tuple[int, float]]:
    """[(index, start in seconds)] of the chosen sessions, by index; uniform in [0, hours)."""
    drawn = []
    for index in indices:
        # Random(text) and random() are the two parts of `random` that keep their values across versions.
        generator = random.Random(f"{options.seed}/{index}")
        drawn.append((generator.random(), index, generator.random() * hours_of(options) * 3600))
    drawn.sort()
    return sorted((index, start_s) for _, index, start_s in drawn[: options.sessions])


def start_notes(num_sessions: int, num_chosen: int, options: Options) -> tuple[str, ...]:
    """What `session_starts` models, a sentence each, for `Trace.notes`."""
    hours = hours_of(options)
    return (
        f"{num_chosen} of {num_sessions} sessions, chosen by seed {options.seed}.",
        f"Start times of sessions are modelled: uniform over {hours:g} h, by seed {options.seed}.",
        f"Requests later than {hours:g} h after the start of the trace are dropped.",
    )
