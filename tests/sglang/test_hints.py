"""`kv_hints`: payloads, and what each action does to a real cache when its request is over."""

from __future__ import annotations

from array import array
from types import SimpleNamespace

import pytest
from sglang.srt.managers.kv_hints import decode_kv_hints_envelope
from sglang.srt.managers.schedule_batch import FINISH_ABORT, FINISH_LENGTH, Req
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.sampling.sampling_params import SamplingParams

from radiximp.serving.api import hints
from radiximp.serving.tree import pin_book
from tests.sglang.builders import build_cache, fresh_prompts, hit, key_of, request
from tests.sglang.kv_rig import KvRig

POOL_TOKENS = 1024
BUDGET = 256
MANAGER = SimpleNamespace(model_config=SimpleNamespace(vocab_size=1000))


@pytest.fixture
def cache():
    cache = build_cache(POOL_TOKENS)
    cache.tree_core.observe_arrival(1e9)
    return cache


def envelope(*actions: tuple[str, dict], version: str = "1"):
    return decode_kv_hints_envelope(
        {
            "protocol_version": "1",
            "message_id": "m",
            "actions": [
                {"action_id": str(n), "action_type": name, "action_version": version, "payload": payload}
                for n, (name, payload) in enumerate(actions)
            ],
        }
    )


def over(prompt: list[int], *actions, salt=None, answer=(), reason=None, **given) -> Req:
    """A request that is over, with hints."""
    req = Req("r", "", array("q", prompt), SamplingParams(max_new_tokens=4), cache_salt=salt)
    req.output_ids = array("q", answer)
    req.full_untruncated_fill_ids = array("q", [*prompt, *answer])
    req.finished_reason = reason or FINISH_LENGTH(length=4)
    req.kv_hints = envelope(*actions, **given)
    return req


def apply(core, req: Req) -> None:
    """As after the insert of the whole request."""
    core.hints.apply(req, len(req.full_untruncated_fill_ids))


@pytest.mark.parametrize(
    "name, payload, text",
    [
        ("retain", {}, "payload.ttl_s: Field required"),
        ("retain", {"ttl_s": -1}, "payload.ttl_s"),
        ("retain", {"ttl_s": 1e7}, "payload.ttl_s"),
        ("retain", {"ttl_s": 10, "scope": "world"}, "payload.scope"),
        ("retain", {"ttl_s": 10, "tll": 1}, "payload.tll"),
        ("prefetch", {"input_ids": []}, "payload.input_ids"),
        ("prefetch", {"input_ids": [1, 1000]}, "expected tokens from 0 to 999, got 1000"),
        ("demote", {"keep_tokens": "all"}, "payload.keep_tokens"),
    ],
)
def test_a_bad_payload_is_refused_in_one_line(name, payload, text):
    with pytest.raises(ValueError) as error:
        hints.check(MANAGER, SimpleNamespace(kv_hints=[None, envelope((name, payload))]))
    assert text in str(error.value) and "\n" not in str(error.value)


def test_too_many_actions_are_refused():
    with pytest.raises(ValueError, match="at most 8"):
        hints.check(MANAGER, SimpleNamespace(kv_hints=envelope(*[("demote", {})] * 9)))


@pytest.mark.parametrize("given", [("evacuate", {"x": 1}, "1"), ("retain", {"nonsense": 1}, "2")])
def test_what_is_not_ours_is_ignored(cache, given):
    name, payload, version = given
    hinted = envelope((name, payload), version=version)
    hints.check(MANAGER, SimpleNamespace(kv_hints=hinted))
    apply(cache.tree_core, over([1, 2], (name, payload), version=version))
    assert not any(cache.tree_core.hints.stats().values())


def test_retain_pins_the_prompt_or_the_conversation_in_its_own_namespace_once(cache):
    fresh, core = fresh_prompts(), cache.tree_core
    prompt, answer = fresh(100), fresh(20)
    request(cache, prompt + answer, cache_salt="a")
    request(cache, prompt + answer, cache_salt="b")
    req = over(prompt, ("retain", {"ttl_s": 60}), salt="a", answer=answer)
    apply(core, req)
    apply(core, req)
    assert core.pinned_tokens == 100 and core.hints.stats()["retain"] == 1
    apply(core, over(prompt, ("retain", {"ttl_s": 60, "scope": "conversation"}), salt="a", answer=answer))
    assert core.pinned_tokens == 120
    cache.evict(EvictParams(num_tokens=120))
    assert hit(cache, prompt + answer, cache_salt="a") == 120 and hit(cache, prompt, cache_salt="b") == 0
    core.observe_arrival(1e9 + 61)
    core.settle()
    assert core.pinned_tokens == 0
    cache.sanity_check()


def test_a_running_and_an_aborted_request_hint_nothing(cache):
    prompt = fresh_prompts()(100)
    request(cache, prompt)
    aborted = over(prompt, ("retain", {"ttl_s": 60}), reason=FINISH_ABORT())
    running = over(prompt, ("retain", {"ttl_s": 60}))
    running.finished_reason = None
    for req in (aborted, running):
        apply(cache.tree_core, req)
    assert cache.tree_core.pinned_tokens == 0


def test_hints_stay_within_the_budget_and_never_displace_an_operators_pin(cache):
    fresh, core = fresh_prompts(), cache.tree_core
    operators, first, second = fresh(150), fresh(100), fresh(100)
    for seconds, prompt in enumerate((operators, first, second)):
        core.observe_arrival(1e9 + seconds)
        request(cache, prompt)
    core.pin_book.add("operator", [key_of(operators)], 1000, is_hard=False)
    apply(core, over(first, ("retain", {"ttl_s": 60})))
    apply(core, over(second, ("retain", {"ttl_s": 60})))
    assert core.pinned_tokens == 250 <= BUDGET
    assert {row["pin_id"] for row in core.pin_book.describe()} == {"operator", "hint"}
    cache.evict(EvictParams(num_tokens=100))
    assert (hit(cache, operators), hit(cache, first), hit(cache, second)) == (150, 0, 100)
    third = fresh(200)
    request(cache, third)
    apply(core, over(third, ("retain", {"ttl_s": 60})))
    assert core.pin_book.describe("operator")[0]["tokens_pinned"] == 150
    assert core.pinned_tokens <= BUDGET and core.hints.stats()["no_room"] == 1
    # An operator's own pin takes a hint's place before another operator's.
    request(cache, first)
    (found,) = core.pin_book.add("later", [key_of(first)], 1000, is_hard=False)
    assert found["tokens_pinned"] == 100 and core.pin_book.describe("operator")[0]["tokens_pinned"] == 150
    cache.sanity_check()


def test_the_number_of_hints_is_bounded(cache, monkeypatch):
    monkeypatch.setattr(pin_book, "MAX_HINTS", 3)
    fresh = fresh_prompts()
    for _ in range(6):
        prompt = fresh(10)
        request(cache, prompt)
        apply(cache.tree_core, over(prompt, ("retain", {"ttl_s": 60})))
    assert len(cache.tree_core.pin_book.describe()) == 3 and cache.tree_core.pinned_tokens == 30


def test_demote_lets_the_conversation_go_first(cache):
    fresh, core = fresh_prompts(), cache.tree_core
    old, done = fresh(100), fresh(100)
    request(cache, old)
    core.observe_arrival(1e9 + 600)
    request(cache, done)
    apply(core, over(done, ("demote", {"keep_tokens": 30})))
    cache.evict(EvictParams(num_tokens=70))
    assert (hit(cache, old), hit(cache, done)) == (100, 30)
    assert core.hints.stats()["demoted_tokens"] == 70


def test_prefetch_loads_what_is_on_the_host_at_the_end_of_the_batch():
    rig, fresh = KvRig(POOL_TOKENS, write_policy="write_through"), fresh_prompts()
    coming, now, large = fresh(200), fresh(50), fresh(300)
    for prompt in (coming, large):
        rig.finish(rig.start(prompt, "a")[0])
        rig.drain()
    rig.cache.evict(EvictParams(num_tokens=POOL_TOKENS))
    book = rig.core.hints
    apply(
        rig.core, over(now, ("prefetch", {"input_ids": coming}), ("prefetch", {"input_ids": large}), salt="a")
    )
    apply(rig.core, over(now, ("prefetch", {"input_ids": coming}), salt="b"))
    assert hit(rig.cache, coming, cache_salt="a") == 0
    book.run_prefetches()
    rig.drain()
    assert hit(rig.cache, coming, cache_salt="a") == 200
    stats = book.stats()
    assert (stats["prefetch"], stats["loaded_tokens"], stats["no_room"]) == (3, 200, 1), (
        "300 are beyond the budget"
    )
    rig.check()
    rig.close()
