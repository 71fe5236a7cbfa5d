"""The pin book on a real cache: budget, life, displacement (CASES 5 and 6)."""

from __future__ import annotations

import random

import pytest
from sglang.srt.mem_cache.base_prefix_cache import EvictParams

from radiximp.serving.tree import pin_book
from tests.sglang.builders import build_served_cache, fresh_prompts, hit, key_of, request
from tests.sglang.kv_rig import KvRig

POOL_TOKENS = 1024
BUDGET = 256


@pytest.fixture
def cache():
    return build_served_cache(POOL_TOKENS)


def at(cache, seconds: float) -> None:
    cache.tree_core.observe_arrival(1e9 + seconds)


def test_a_hard_pin_beyond_the_budget_gets_what_is_left_and_a_large_request_is_admitted(cache):
    fresh, book = fresh_prompts(), cache.tree_core.pin_book
    first, second = fresh(200), fresh(100)
    for prompt in (first, second):
        request(cache, prompt)
    assert book.add("a", [key_of(first)], None, is_hard=True)[0]["tokens_pinned"] == 200
    (found,) = book.add("b", [key_of(second)], None, is_hard=True)
    assert (found["tokens_pinned"], found["tokens_requested"]) == (56, 100)
    assert cache.tree_core.pinned_tokens == BUDGET
    request(cache, fresh(700))
    assert hit(cache, first) == 200
    cache.sanity_check()


def test_a_soft_pin_beyond_the_budget_displaces_the_coldest_soft_one(cache):
    fresh, book = fresh_prompts(), cache.tree_core.pin_book
    prompts = [fresh(100) for _ in range(3)]
    for number, prompt in enumerate(prompts[:2]):
        at(cache, 10 * number)
        request(cache, prompt)
        book.add(str(number), [key_of(prompt)], 1000, is_hard=False)
    at(cache, 30)
    request(cache, prompts[0])
    request(cache, prompts[2])
    assert book.add("2", [key_of(prompts[2])], 1000, is_hard=False)[0]["tokens_pinned"] == 100
    assert book.describe("1") == [] and book.describe("0")[0]["tokens_pinned"] == 100
    assert cache.tree_core.pinned_tokens == 200


def test_a_soft_pin_lasts_from_its_last_use_and_a_hard_one_from_its_beginning(cache):
    fresh, book = fresh_prompts(), cache.tree_core.pin_book
    soft, hard = fresh(50), fresh(50)
    for prompt, is_hard in ((soft, False), (hard, True)):
        request(cache, prompt)
        book.add(str(is_hard), [key_of(prompt)], 100, is_hard)
    for seconds in (80, 160, 240):  # nobody evicts or asks in between
        at(cache, seconds)
        request(cache, soft)
        request(cache, hard)
    at(cache, 310)
    (left,) = book.describe()
    assert left["pin_id"] == "False" and left["expires_in_s"] == pytest.approx(30)
    at(cache, 500)
    assert book.describe() == [] and cache.tree_core.pinned_tokens == 0
    request(cache, soft)  # a use after the expiry does not revive it
    assert book.describe() == []
    cache.sanity_check()


def test_a_use_of_what_a_pinned_prompt_shares_with_others_is_none_of_the_pin(cache):
    fresh, book = fresh_prompts(), cache.tree_core.pin_book
    system = fresh(50)
    pinned, other = system + fresh(50), system + fresh(30)
    for prompt in (pinned, other):
        request(cache, prompt)
    book.add("pin", [key_of(pinned)], 60, is_hard=False)
    for seconds in range(10, 100, 10):
        at(cache, seconds)
        request(cache, other)
    assert book.describe() == [] and cache.tree_core.pinned_tokens == 0


def test_a_pin_ends_where_its_content_leaves_the_device_and_gives_the_budget_back():
    rig = KvRig(POOL_TOKENS, write_policy="write_through")
    book = rig.cache.tree_core.pin_book
    first, second = list(range(1000, 1256)), list(range(2000, 2200))
    for prompt in (first, list(range(5000, 6000)), second):
        handle, _ = rig.start(prompt)
        if prompt is first:
            rig.finish(handle)
            rig.drain()
            assert book.add("first", [key_of(first)], None, is_hard=True)[0]["tokens_pinned"] == 256
        else:
            rig.finish(handle)
            rig.drain()
    assert book.describe("first")[0]["tokens_pinned"] < 256
    assert book.add("second", [key_of(second)], None, is_hard=True)[0]["tokens_pinned"] == 200
    rig.cache.sanity_check()
    rig.close()


def test_two_pins_on_one_prefix_are_counted_and_each_is_removed_once(cache):
    prompt, book = fresh_prompts()(100), cache.tree_core.pin_book
    request(cache, prompt)
    book.add("a", [key_of(prompt)], None, is_hard=True)
    book.add("b", [key_of(prompt[:60])], None, is_hard=True)
    assert cache.tree_core.pinned_tokens == 100
    assert book.remove("a") == 1 and book.remove("a") == 0
    assert cache.tree_core.pinned_tokens == 60
    cache.evict(EvictParams(num_tokens=40))
    assert hit(cache, prompt) == 60
    assert book.remove("b") and cache.tree_core.pinned_tokens == 0
    cache.evict(EvictParams(num_tokens=POOL_TOKENS))
    assert hit(cache, prompt) == 0


def test_a_flush_drops_pins(cache):
    prompt, book = fresh_prompts()(100), cache.tree_core.pin_book
    request(cache, prompt)
    book.add("a", [key_of(prompt)], None, is_hard=True)
    cache.reset()
    assert book.describe() == [] and cache.tree_core.pinned_tokens == 0


def test_there_is_a_largest_number_of_pins(cache, monkeypatch):
    monkeypatch.setattr(pin_book, "MAX_PINS", 3)
    prompt, book = fresh_prompts()(10), cache.tree_core.pin_book
    for number in range(3):
        book.add(str(number), [key_of(prompt)], None, is_hard=False)
    with pytest.raises(ValueError, match="at most 3 prompts can be pinned, 3 are"):
        book.add("more", [key_of(prompt)], None, is_hard=False)


def test_the_tokens_that_pins_may_name_are_bounded(cache, monkeypatch):
    monkeypatch.setattr(pin_book, "MAX_PIN_TOKENS", 25)
    prompt, book = fresh_prompts()(10), cache.tree_core.pin_book
    book.add("a", [key_of(prompt)] * 2, None, is_hard=False)
    with pytest.raises(ValueError, match="at most 25 tokens can be named by pins, 30 would be"):
        book.add("more", [key_of(prompt)], None, is_hard=False)


@pytest.mark.parametrize("seed", range(4))
def test_the_budget_holds_at_every_step(cache, seed):
    rng, fresh, book = random.Random(seed), fresh_prompts(), cache.tree_core.pin_book
    prompts = [fresh(rng.randrange(10, 300)) for _ in range(12)]
    for step in range(300):
        at(cache, step * 7.0)
        prompt = rng.choice(prompts)
        action = rng.choice(["request", "request", "add", "remove", "evict"])
        if action == "request":
            request(cache, prompt)
        elif action == "add":
            book.add(str(step), [key_of(prompt)], rng.choice([None, 30.0, 300.0]), rng.random() < 0.3)
        elif action == "remove" and book.describe():
            assert book.remove(rng.choice(book.describe())["pin_id"]) == 1
        else:
            cache.evict(EvictParams(num_tokens=rng.randrange(1, 400)))
        assert cache.tree_core.pinned_tokens <= BUDGET
        cache.sanity_check()
