"""Annotations where content comes back in other pieces, is cut, pinned by several, or arrives from below."""

from __future__ import annotations

from array import array

import pytest
import torch
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams
from sglang.srt.sampling.sampling_params import SamplingParams

from radiximp.policy.clock import ManualClock
from tests.sglang.builders import build_cache, fresh_prompts, hit, insert, key_of, lookup, request
from tests.sglang.kv_rig import KvRig


def queries(cache, tokens) -> list[tuple[int, int]]:
    return [(node["tokens"], node["queries"]) for node in cache.tree_core.describe(key_of(tokens))]


def test_a_famous_prefix_does_not_lend_its_fame_to_a_new_tail():
    cache, fresh = build_cache(1024), fresh_prompts()
    system = fresh(64)
    for _ in range(10):
        request(cache, system)
    cache.evict(EvictParams(num_tokens=1024))
    tail = fresh(16)
    request(cache, system + tail)
    assert queries(cache, system + tail) == [(64, 11), (16, 1)]
    cache.evict(EvictParams(num_tokens=1024))
    request(cache, system + tail)
    assert queries(cache, system + tail) == [(64, 12), (16, 2)]
    cache.sanity_check()


def test_a_small_shortfall_frees_about_itself_in_few_cuts():
    cache = build_cache(8192)
    prompt = list(range(8192))
    request(cache, prompt)
    num_cuts = 0
    while (left := hit(cache, prompt)) > 0:
        cache.evict(EvictParams(num_tokens=8))
        freed = left - hit(cache, prompt)
        assert 8 <= freed <= max(64, left // 16) + 64
        num_cuts += 1
    assert num_cuts < 120  # 8 tokens a step would be 1024 cuts of what is left
    assert len(cache.tree_core.ghosts) == num_cuts
    cache.sanity_check()


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_long_leaf_gives_its_tail(page_size):
    rig = KvRig(4096, page_size)
    handle, _ = rig.start(list(range(3008)))
    rig.finish(handle)
    result = rig.cache.evict(EvictParams(num_tokens=200))
    assert 200 <= result.num_tokens_evicted < 200 + page_size
    rig.check()


def test_a_shorter_unpin_orphans_no_pin():
    cache, prompt = build_cache(1024), list(range(100))
    core = cache.tree_core
    request(cache, prompt)
    core.pin(key_of(prompt))
    lookup(cache, prompt[:40])
    assert core.unpin(key_of(prompt[:40])) == 40
    assert core.unpin(key_of(prompt)) == 60
    assert core.pinned_tokens == 0
    assert core.unpin(key_of(prompt)) == 0


def test_one_pin_ends_and_the_other_stays():
    cache, prompt = build_cache(1024), list(range(100))
    core = cache.tree_core
    core.clock = clock = ManualClock()
    request(cache, prompt)
    core.pin(key_of(prompt), ttl_s=50)
    core.pin(key_of(prompt), ttl_s=10)
    core.pin(key_of(prompt))
    assert core.unpin(key_of(prompt)) == 100
    clock.advance(20)
    core.settle()
    assert core.pinned_tokens == 100
    clock.advance(40)
    core.settle()
    assert core.pinned_tokens == 0


@pytest.mark.parametrize("ttl_s", [0, -5, float("nan"), float("inf")])
def test_a_senseless_ttl_is_refused(ttl_s):
    cache = build_cache(1024)
    request(cache, list(range(10)))
    with pytest.raises(ValueError, match="ttl_s: expected a positive number of seconds or None"):
        cache.tree_core.pin(key_of(range(10)), ttl_s)
    assert cache.tree_core.pinned_tokens == 0


@pytest.mark.parametrize("density", [-1.0, float("inf"), 1e308])
def test_a_senseless_density_changes_nothing(density):
    cache = build_cache(1024)
    insert(cache, list(range(10)))
    with pytest.raises(ValueError, match="page_densities: expected numbers from 0 to 1e.06"):
        cache.tree_core.observe(key_of(range(10)), [2.0] * 9 + [density])
    assert cache.tree_core.describe(key_of(range(10)))[0]["importance"] == 1.0


def test_a_retracted_request_counts_once_also_when_its_prefix_was_evicted():
    cache, prompt = build_cache(1024), list(range(64))
    retracted = Req("retracted", "", array("q", prompt), SamplingParams(max_new_tokens=1))
    for _ in range(3):
        slots = cache.token_to_kv_pool_allocator.alloc(64)
        with cache.tree_core.uses.on_behalf_of(retracted):
            cache.insert(InsertParams(key=key_of(prompt), value=slots))
        cache.evict(EvictParams(num_tokens=1024))
    slots = cache.token_to_kv_pool_allocator.alloc(64)
    with cache.tree_core.uses.on_behalf_of(retracted):
        cache.insert(InsertParams(key=key_of(prompt), value=slots))
    assert queries(cache, prompt) == [(64, 1)]


def test_what_comes_from_storage_has_its_history_whether_asked_about_or_not():
    def fetched(is_asked: bool):
        rig = KvRig(256, write_policy="write_through")
        rig.core.clock = clock = ManualClock()
        prompt = list(range(48))
        for _ in range(3):
            handle, _ = rig.start(prompt)
            rig.finish(handle)
            rig.drain()
            clock.advance(10)
        rig.cache.evict(EvictParams(num_tokens=256))
        rig.cache.evict_host(256)
        assert not rig.core.describe(key_of(prompt))
        slots = rig.cache.cache_controller.mem_pool_host.alloc(48)
        rig.core.insert_host(rig.core.root_node.id, key_of(prompt), slots, [f"{i:064x}" for i in prompt])
        if is_asked:
            rig.core.hotspots()
        clock.advance(500)
        history = rig.core.history_of(next(iter(rig.core.root_node.children.values())))
        rig.close()
        return history.num_queries, history.last_use_s

    assert fetched(True) == fetched(False)
    assert fetched(True)[0] == 3


def test_slots_are_not_shared_after_a_return_in_pieces():
    cache = build_cache(1024)
    prompt = list(range(200))
    request(cache, prompt[:64])
    request(cache, prompt)
    cache.evict(EvictParams(num_tokens=1024))
    request(cache, prompt)
    values = cache.all_values_flatten()
    assert len(torch.unique(values)) == len(values) == 200
