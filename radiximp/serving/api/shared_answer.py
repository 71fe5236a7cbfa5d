"""One answer for everybody who asks within an interval, so that what is costly to answer costs the same however many look.

Owned by an event loop; no thread, no task while nobody asks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

# Between two answers: at least so long, and so long that answering takes at most this share of the time.
MIN_INTERVAL_S = 2.0
MAX_SHARE = 0.005


@dataclass(frozen=True)
class Answer:
    """content: of any kind. number: grows with each new one. made_s: on the clock of the `SharedAnswer`."""

    content: Any
    number: int
    made_s: float
    interval_s: float


class SharedAnswer:
    """get: the newest answer; whoever comes first after the interval has a new one made, and the others wait for the same."""

    def __init__(
        self,
        ask: Callable[[], Awaitable[tuple[Any, float]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """ask: gives the content and the seconds that it cost whom it is to spare."""
        self._ask = ask
        self.clock = clock
        self._answer: Answer | None = None
        self._asking: asyncio.Task | None = None

    async def get(self) -> Answer:
        """Raises what `ask` raises, to all who wait for it; the next one asks again."""
        answer = self._answer
        if answer is not None and self.clock() < answer.made_s + answer.interval_s:
            return answer
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._renew())
        # One who gives up leaves the others theirs.
        return await asyncio.shield(self._asking)

    async def _renew(self) -> Answer:
        content, cost_s = await self._ask()
        number = 1 if self._answer is None else self._answer.number + 1
        self._answer = Answer(content, number, self.clock(), max(MIN_INTERVAL_S, cost_s / MAX_SHARE))
        return self._answer
