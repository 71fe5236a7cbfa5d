"""Who asks within an interval shares an answer, and what is dear is asked for less often."""

from __future__ import annotations

import asyncio

import pytest

from radiximp.serving.api.shared_answer import MAX_SHARE, MIN_INTERVAL_S, SharedAnswer


class Source:
    """Counts how often it is asked; answers when it is let."""

    def __init__(self, cost_s: float = 0.0) -> None:
        self.cost_s = cost_s
        self.num_asked = 0
        self.now_s = 100.0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.error: Exception | None = None
        self.shared = SharedAnswer(self.ask, lambda: self.now_s)

    async def ask(self) -> tuple[int, float]:
        self.num_asked += 1
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return self.num_asked, self.cost_s


def test_within_the_interval_there_is_one_answer_for_all():
    async def scenario() -> None:
        source = Source()
        answers = await asyncio.gather(*(source.shared.get() for _ in range(50)))
        assert source.num_asked == 1 and len(set(map(id, answers))) == 1
        source.now_s += MIN_INTERVAL_S - 0.01
        assert (await source.shared.get()).number == 1
        source.now_s += 0.02
        assert (await source.shared.get()).number == 2 == source.num_asked

    asyncio.run(scenario())


@pytest.mark.parametrize("cost_s", [0.05, 0.2])
def test_what_is_dear_is_asked_for_less_often(cost_s):
    async def scenario() -> None:
        source = Source(cost_s)
        answer = await source.shared.get()
        assert answer.interval_s == cost_s / MAX_SHARE > MIN_INTERVAL_S
        for _ in range(1000):
            source.now_s += 1
            await source.shared.get()
        assert (source.num_asked - 1) * cost_s <= 1000 * MAX_SHARE

    asyncio.run(scenario())


def test_who_gives_up_leaves_the_others_theirs():
    async def scenario() -> None:
        source = Source()
        source.may_answer.clear()
        first, second = (asyncio.create_task(source.shared.get()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        source.may_answer.set()
        assert (await second).number == 1 == source.num_asked

    asyncio.run(scenario())


def test_a_failure_is_told_to_all_who_wait_and_not_kept():
    async def scenario() -> None:
        source = Source()
        source.error = RuntimeError("no")
        told = await asyncio.gather(*(source.shared.get() for _ in range(3)), return_exceptions=True)
        assert [str(error) for error in told] == ["no"] * 3 and source.num_asked == 1
        source.error = None
        assert (await source.shared.get()).content == 2

    asyncio.run(scenario())
