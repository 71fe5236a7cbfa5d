"""Small situations from real users with the right answer, all on the default configuration."""

from __future__ import annotations

import itertools
import random
from array import array

import numpy as np
import pytest
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.sampling.sampling_params import SamplingParams

from radiximp.policy.clock import ManualClock
from radiximp.serving.tree.namespaces import joined
from tests.sglang.builders import (
    build_cache,
    fresh_prompts,
    hit,
    insert,
    key_of,
    lookup,
    request,
    victims_of_traffic,
)


def test_one_shot_scan_keeps_a_shared_prefix():
    cache, fresh = build_cache(1024), fresh_prompts()
    shared = fresh(64)
    for _ in range(5):
        request(cache, shared + fresh(16))
    for _ in range(40):
        request(cache, fresh(64))
    assert hit(cache, shared) == 64


@pytest.mark.parametrize("is_retained, least", [(False, 224), (True, 320)])
def test_a_paused_agent_survives_a_scan(is_retained, least):
    cache, fresh = build_cache(2048), fresh_prompts()
    shared = fresh(128)
    sessions = [shared + fresh(96) for _ in range(3)]
    for session in sessions:
        request(cache, session)
    for session in sessions:
        session += fresh(96)
        request(cache, session)
    if is_retained:
        assert cache.tree_core.pin(key_of(sessions[0])) == 320
    for _ in range(60):
        request(cache, fresh(64))
    assert hit(cache, sessions[0]) >= least


def test_the_hot_set_moves():
    cache, fresh = build_cache(1024), fresh_prompts()
    old = [fresh(64) for _ in range(10)]
    for _ in range(5):
        for prompt in old:
            request(cache, prompt)
    new = [fresh(64) for _ in range(8)]
    rounds = [[request(cache, prompt) for prompt in new] for _ in range(20)]
    assert np.mean(rounds[1:]) / 64 >= 0.90


@pytest.mark.parametrize("policy, is_lost", [("lru", True), ("tlru", True)])
def test_stock_recency_loses_the_shared_prefix(policy, is_lost):
    cache, fresh = build_cache(1024, policy=policy), fresh_prompts()
    shared = fresh(64)
    for _ in range(5):
        request(cache, shared + fresh(16))
    for _ in range(40):
        request(cache, fresh(64))
    assert (hit(cache, shared) == 0) is is_lost


SCORES = pytest.mark.parametrize("score", ["reuse", "lrfu"])


@SCORES
def test_annotations_survive_splits(score):
    cache = build_cache(1024, config={"score": score})
    core = cache.tree_core
    prompt, other = list(range(100)), list(range(1000, 1100))
    insert(cache, prompt)
    insert(cache, other)
    core.observe(key_of(prompt), [3.5] * 100)
    assert core.pin(key_of(prompt[:70])) == 70
    order_before = [victim["tokens"] for victim in core.dry_run(200)]

    lookup(cache, prompt[:40])
    lookup(cache, prompt[:70])

    fragments = core.describe(key_of(prompt))
    assert [fragment["tokens"] for fragment in fragments] == [40, 30, 30]
    assert [fragment["importance"] for fragment in fragments] == [3.5, 3.5, 3.5]
    assert [fragment["is_pinned"] for fragment in fragments] == [True, True, False]
    masses = [core.node_by_id(fragment["node"]).history.importance.mass for fragment in fragments]
    assert masses == pytest.approx([140, 105, 105])
    assert sum(masses) == pytest.approx(350)
    order_after = [victim["tokens"] for victim in core.dry_run(200)]
    assert order_after == [tokens for tokens in order_before if tokens != 70] + [30, 40]
    assert order_before == ([100, 30, 70] if score == "lrfu" else [30, 100, 70])
    cache.sanity_check()


def _two_prompts():
    cache = build_cache(200)
    a, b = list(range(100)), list(range(1000, 1100))
    request(cache, a)
    request(cache, b)
    return cache, a, b


def test_a_question_changes_nothing():
    cache, a, b = _two_prompts()
    core = cache.tree_core
    num_nodes = len(core._node_arena)
    for _ in range(1000):
        core.describe(key_of(a[:10]))
        core.hotspots()
        core.dry_run(90)
        core.stats()
    cache.evict(EvictParams(num_tokens=100))
    assert (hit(cache, a), hit(cache, b), len(core._node_arena)) == (0, 100, num_nodes - 1)


def test_questions_between_requests_change_no_victim():
    """Asking makes the tree settle sooner; what is known when a victim is chosen stays the same."""
    victims: dict[bool, list] = {}
    for asks in (False, True):
        cache = build_cache(2048)
        core = cache.tree_core

        def ask(core=core, asks=asks) -> None:
            if asks:
                core.stats()
                core.dry_run(100)

        victims[asks] = victims_of_traffic(cache, 600, ask)
    assert victims[True] == victims[False] and len(victims[True]) > 100


def test_one_real_use_keeps_what_was_used():
    cache, a, b = _two_prompts()
    lookup(cache, a[:10])
    cache.evict(EvictParams(num_tokens=90))
    assert (hit(cache, a), hit(cache, b)) == (10, 100)


@pytest.mark.parametrize("first_is_evicted", [0, 1])
def test_a_chain_loses_its_tail_first(first_is_evicted):
    cache = build_cache(1024)
    left, right = list(range(1, 33)), list(range(1, 17)) + list(range(500, 516))
    insert(cache, left)
    insert(cache, right)
    cache.tree_core.observe(key_of(left), [0.01] * 16 + [9.0 - first_is_evicted] * 16)
    cache.tree_core.observe(key_of(right), [0.01] * 16 + [8.0 + first_is_evicted] * 16)
    cache.evict(EvictParams(num_tokens=16))
    assert sorted([hit(cache, left), hit(cache, right)]) == [16, 32]
    cache.evict(EvictParams(num_tokens=16))
    assert [hit(cache, left), hit(cache, right)] == [16, 16]
    cache.sanity_check()


def test_the_deepest_of_a_chain_goes_first():
    for seed in range(200):
        rng = random.Random(seed)
        cache = build_cache(1024)
        cache.tree_core.clock = ManualClock()
        chain = list(range(96))
        insert(cache, chain)
        cuts = [16, 32, 48, 64, 80]
        rng.shuffle(cuts)
        for cut in cuts:
            lookup(cache, chain[:cut])
        cache.tree_core.observe(key_of(chain), [rng.choice([0.1, 1.0, 5.0]) for _ in chain])
        for expected in (80, 64, 48, 32, 16, 0):
            cache.evict(EvictParams(num_tokens=16))
            assert hit(cache, chain) == expected


def test_one_request_is_one_use():
    cache = build_cache(1024)
    core = cache.tree_core
    prompt, answer = list(range(400)), list(range(5000, 5100))
    slots = cache.token_to_kv_pool_allocator.alloc(500)
    for end in (100, 200, 300, 400):  # four prefill chunks
        cache.insert(
            InsertParams(
                key=key_of(prompt[:end]), value=slots[:end], prev_prefix_len=end - 100, inserted_len=end - 100
            )
        )
    cache.insert(
        InsertParams(key=key_of(prompt + answer), value=slots, prev_prefix_len=400, inserted_len=400)
    )  # after 100 decode steps
    assert {node["queries"] for node in core.describe(key_of(prompt + answer))} == {1}


def test_looking_up_a_waiting_request_again_adds_nothing():
    cache = build_cache(1024)
    prompt = list(range(64))
    request(cache, prompt)
    cache.tree_core.observe_arrival(1000.0)
    waiting = Req("waiting", "", array("q", prompt), SamplingParams(max_new_tokens=1))
    before = cache.tree_core.describe(key_of(prompt))
    for _ in range(50):
        cache.match_prefix(MatchPrefixParams(key=key_of(prompt), req=waiting))
    assert cache.tree_core.describe(key_of(prompt)) == before


def test_a_retracted_request_counts_once():
    cache, prompt = build_cache(1024), list(range(64))
    retracted = Req("retracted", "", array("q", prompt), SamplingParams(max_new_tokens=1))
    slots = cache.token_to_kv_pool_allocator.alloc(64)
    with cache.tree_core.uses.on_behalf_of(retracted):
        cache.insert(InsertParams(key=key_of(prompt[:32]), value=slots[:32]))
    request(cache, prompt[:16])  # somebody else in between
    with cache.tree_core.uses.on_behalf_of(retracted):  # starts over: nothing counts as inserted yet
        cache.insert(InsertParams(key=key_of(prompt), value=slots))
    assert [node["queries"] for node in cache.tree_core.describe(key_of(prompt))] == [2, 1, 1]


def test_a_burst_ranks_below_two_spaced_uses():
    cache = build_cache(1024)
    core = cache.tree_core
    core.clock = clock = ManualClock()
    burst, spaced = list(range(64)), list(range(1000, 1064))
    request(cache, spaced)
    clock.advance(60)
    request(cache, spaced)
    for _ in range(6):
        request(cache, burst)
        clock.advance(0.05 / 6)
    clock.advance(core.config.half_life_s)
    cache.evict(EvictParams(num_tokens=64))
    assert (hit(cache, burst), hit(cache, spaced)) == (0, 64)


def test_namespaces_never_meet():
    def splits(text, parts):
        for cuts in itertools.combinations_with_replacement(range(len(text) + 1), parts - 1):
            edges = (0, *cuts, len(text))
            yield tuple(text[a:b] for a, b in itertools.pairwise(edges))

    def namespace(lora, extra, salt):
        return {"extra_key": joined(extra or None, lora or None), "cache_salt": salt or None}

    prompt = list(range(64))
    tuples = list(splits("abcd", 3))
    for owner in tuples:
        cache = build_cache(4096)
        request(cache, prompt, **namespace(*owner))
        cache.tree_core.pin(key_of(prompt, **namespace(*owner)))
        for other in tuples:
            found = cache.tree_core.describe(key_of(prompt, **namespace(*other)))
            assert (hit(cache, prompt, **namespace(*other)), len(found)) == (
                (64, 1) if other == owner else (0, 0)
            )


def test_namespaces_share_no_ghosts():
    cache = build_cache(64)
    prompt = list(range(64))
    request(cache, prompt, cache_salt="s")
    request(cache, prompt, cache_salt="s")
    cache.evict(EvictParams(num_tokens=64))
    request(cache, prompt, cache_salt="t")
    assert cache.tree_core.describe(key_of(prompt, cache_salt="t"))[0]["queries"] == 1
    cache.evict(EvictParams(num_tokens=64))
    request(cache, prompt, cache_salt="s")
    assert cache.tree_core.describe(key_of(prompt, cache_salt="s"))[0]["queries"] == 3


def _brute_force_victim(core):
    """The leaf that a full sort at this instant puts first, pins by their expiry."""
    now_s = core.clock.now_s()
    core.policy.advance(now_s)

    def rank(leaf):
        return any(pin.expires_s > now_s for pin in leaf.history.pins), *core.policy.key(leaf), leaf.id

    return min(core.evictable_device_leaves, key=rank)


@SCORES
def test_every_victim_is_what_a_full_sort_would_give(score):
    rng = np.random.default_rng(7)
    config = {"score": score, "max_uses": 1e9, "trim_tokens": 0}
    cache, fresh = build_cache(40_000, config=config), fresh_prompts()
    core = cache.tree_core
    core.clock = clock = ManualClock()
    heads = [fresh(8) for _ in range(20)]
    prompts = [heads[i % 20] + fresh(8) for i in range(400)]
    for step in range(2000):
        clock.advance(float(rng.exponential(5)))
        prompt = prompts[int(rng.integers(len(prompts)))]
        action = rng.choice(["use", "use", "use", "observe", "pin", "unpin", "evict", "evict"])
        if action == "use":
            request(cache, prompt)
        elif action == "observe":
            core.observe(key_of(prompt), rng.gamma(1, 1, size=16).tolist())
        elif action == "pin":
            core.pin(key_of(prompt), ttl_s=float(rng.exponential(40)))
        elif action == "unpin":
            core.unpin(key_of(prompt))
        elif core.evictable_device_leaves:
            core.uses.settle()
            expected = _brute_force_victim(core).id
            cache.evict(EvictParams(num_tokens=1))
            assert expected not in core._node_arena, f"step {step}: node {expected} should have gone"
    assert core.num_evictions["device"] > 300
    cache.sanity_check()
