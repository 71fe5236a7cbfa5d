"""The shadow of lru against a plain lru of tokens, and when the guard acts."""

from __future__ import annotations

from collections import OrderedDict

import hypothesis.strategies as st
from hypothesis import given, settings

from radiximp.policy.guard import Guard, LruShadow


def test_the_shadow_forgets_what_was_used_again():
    """Where everything fits nothing is dropped, and one number a request would grow for ever."""
    shadow = LruShadow()
    shadow.capacity_tokens = 1000
    shadow.use(1, {}, 100)
    for number in range(2, 1000):
        assert shadow.use(number, {number - 1: 100}, 0) == 100
    assert len(shadow._tokens) == 1


@settings(max_examples=200)
@given(
    capacity=st.integers(1, 40),
    uses=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 8)), min_size=1, max_size=60),
)
def test_the_shadow_hits_what_a_plain_lru_hits(capacity, uses):
    """Prompts of fixed size each: used whole, and lru drops the last tokens of the oldest first."""
    shadow, sizes = LruShadow(), {}
    shadow.capacity_tokens = capacity
    plain: OrderedDict[int, int] = OrderedDict()
    last_use: dict[int, int] = {}
    for number, (prompt, num_tokens) in enumerate(uses, 1):
        size = sizes.setdefault(prompt, num_tokens)
        expected = plain.pop(prompt, 0)
        if prompt in last_use:
            hit = shadow.use(number, {last_use[prompt]: size}, 0)
        else:
            hit = shadow.use(number, {}, size)
        assert hit == expected
        last_use[prompt] = number
        plain[prompt] = size
        while sum(plain.values()) > capacity:
            oldest = next(iter(plain))
            plain[oldest] -= min(plain[oldest], sum(plain.values()) - capacity)
            if not plain[oldest]:
                del plain[oldest]


def _run(guard: Guard, num_requests: int, loses_each: int) -> int:
    """Requests that lru would hit whole; every `loses_each`-th is missed by the policy."""
    guard.shadow.capacity_tokens = 10**9
    last, num_lru = guard.observe({}, 100, 0), 0
    for number in range(num_requests):
        hit_tokens = 0 if loses_each and number % loses_each == 0 else 100
        last = guard.observe({last: 100}, 0, hit_tokens)
        num_lru += guard.is_tripped
    return num_lru


def test_a_policy_that_loses_is_replaced_for_a_while_and_comes_back():
    guard = Guard()
    num_lru = _run(guard, 20_000, loses_each=10)
    assert guard.num_trips >= 2 and 5_000 < num_lru < 20_000
    assert "lru ranks for the next" in guard.describe() or "ranks again" in guard.describe()


def test_a_policy_that_does_not_lose_is_left_alone():
    for loses_each in (0, 1000):
        guard = Guard()
        assert _run(guard, 20_000, loses_each) == 0 and guard.num_trips == 0


def test_pauses_grow_with_repeated_losses():
    guard = Guard()
    _run(guard, 4_000, loses_each=5)
    first = guard._pause_queries
    _run(guard, 20_000, loses_each=5)
    assert guard._pause_queries > first
