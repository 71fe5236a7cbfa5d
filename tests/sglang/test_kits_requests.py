"""The rest of SGLang's kit: requests, sessions and single steps with settings of their own.

Each runs on our tree core and on the stock one, which must agree on the value that is written here.
"""

from __future__ import annotations

import dataclasses
import unittest
from array import array

import pytest
from sglang.srt.mem_cache.base_prefix_cache import EvictResult, InsertParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components.base import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.test.kits.unified_radix_cache import core, insert_walk
from sglang.test.kits.unified_radix_cache.config import CacheConfig
from sglang.test.kits.unified_radix_cache.fixtures import build_fixture, match_prefix, node_device_value
from sglang.test.kits.unified_radix_cache.mixins import UnifiedRadixCacheFixtures
from sglang.test.mem_cache_utils import finish_req

from tests.sglang.kit_trees import IMPORTANCE, STOCK_LRU, kit_runs_on

FULL, SWA, MAMBA = ComponentType.FULL, ComponentType.SWA, ComponentType.MAMBA


@pytest.fixture(autouse=True, params=[IMPORTANCE, STOCK_LRU], ids=lambda variant: variant.name)
def variant(request):
    with kit_runs_on(request.param):
        yield request.param


def steps(*kits, **attributes):
    """An object with a kit's test steps and unittest's assertions."""
    bases = (*kits, UnifiedRadixCacheFixtures, unittest.TestCase)
    return type("Steps", bases, {"runTest": None, **attributes})()


@pytest.mark.parametrize("with_sessions", core.session_radix_cache_test_values())
@pytest.mark.parametrize(
    "component_type, shortfall, expected",
    [
        (SWA, 2, EvictResult(swa_num_tokens_evicted=2)),
        (MAMBA, 1, EvictResult(mamba_num_evicted=1)),
    ],
)
def test_an_allocation_stops_the_eviction_that_it_waits_for(
    component_type, shortfall, expected, with_sessions
):
    kit = steps(core.UnifiedRadixAllocationEvictionRealComponentsFixtures, _SHORTFALL=shortfall)
    cache, *nodes = kit._build_internal_chain(component_type, with_sessions)
    result, num_drains = kit._evict_for_alloc_after_first_drain(cache, component_type)
    assert (result, num_drains) == (expected, 1)
    kept = [node_device_value(cache, node, component_type) is not None for node in nodes]
    assert kept == [False, True, True]


@pytest.mark.parametrize(
    "tree_page_size, full_hit_length, expected",
    [(1, 64, 64), (1, 100, 64), (1, 130, 128), (64, 192, 192), (128, 256, 256)],
)
def test_mamba_checkpoints_stay_on_their_grid(tree_page_size, full_hit_length, expected):
    cfg = CacheConfig(
        components=(FULL, MAMBA),
        mamba_cache_size=60,
        enable_mamba_extra_buffer=tree_page_size > 1,
        kv_size=1024,
    )
    kit = steps(core.MambaCheckpointGridFixtures, cfg=cfg)
    found = kit._branching_seqlen(tree_page_size=tree_page_size, full_hit_length=full_hit_length)
    assert found == expected


def test_a_match_makes_a_mamba_state_most_recent():
    cfg = CacheConfig(components=(FULL, MAMBA))
    kit = steps(core.UnifiedMambaLRUMatchRefreshFixtures, cfg=cfg)
    cache, allocator, pool = build_fixture(cfg)
    for start in (1, 100, 200):
        UnifiedRadixCacheFixtures._insert(kit, cache, allocator, pool, list(range(start, start + 4)))
    newest, middle, oldest = kit._mamba_lru_mru_to_lru(cache)
    match_prefix(cache, list(range(1, 5)))
    assert kit._mamba_lru_mru_to_lru(cache) == [oldest, newest, middle]


@pytest.mark.parametrize("previous_track_seqlen", [None, 4, 8])
def test_a_finished_mamba_request_is_found_again(previous_track_seqlen):
    cfg = CacheConfig(
        components=(FULL, MAMBA), page_size=4, enable_mamba_extra_buffer=True, mamba_cache_size=60
    )
    cache, allocator, pool = build_fixture(cfg, mamba_cache_chunk_size=4)
    kit = steps(core.MambaFinishedOvershootCheckpointFixtures, cfg=cfg)
    req, tokens = kit._build_req(allocator, pool, previous_track_seqlen)
    req.last_node, req.lock = cache.root_node_handle(), None
    finish_req(cache, req, len(tokens))
    cache.sanity_check()
    assert match_prefix(cache, tokens).device_prefix_len == len(tokens)


def test_an_int8_mamba_checkpoint_is_found_again():
    cfg = CacheConfig(components=(FULL, MAMBA), enable_int8_mamba_checkpoint=True)
    cache, allocator, pool = build_fixture(cfg)
    kit = steps(core.UnifiedRadixCacheInt8MambaCheckpointFixtures, cfg=cfg)
    kit._finished_req(cache, allocator, pool, list(range(12)))
    cache.sanity_check()
    assert match_prefix(cache, list(range(12))).device_prefix_len == 12


def test_a_draft_window_widens_what_is_kept():
    cfg = CacheConfig(
        page_size=64,
        components=(FULL, SWA, MAMBA),
        sliding_window_size=128,
        draft_swa_window=256,
        enable_mamba_extra_buffer=True,
        mamba_cache_size=60,
        kv_size=4096,
        max_context_len=4096,
    )
    cache, allocator, pool = build_fixture(cfg)
    kit = steps(core.SWADraftHistoryFixtures, cfg=cfg)
    req = kit._request(pool)
    req.output_ids = array("q")
    pool.write((req.kv.req_pool_idx, slice(0, 1024)), kit._alloc(allocator, 1024))
    req.last_node = cache.root_node_handle()
    finish_req(cache, req, 1024)
    cache.sanity_check()
    assert cache.sliding_window_size == 256
    assert match_prefix(cache, list(range(1, 1025))).device_prefix_len == 1024


def test_bigram_keys_cover_the_window():
    cfg = CacheConfig(page_size=4, components=(FULL, SWA), sliding_window_size=8, is_eagle=True)
    cache, allocator, _ = build_fixture(cfg)
    kit = steps(core.SWAWindowUnderBigramKeyFixtures, cfg=cfg)
    tokens = list(range(33))
    cache.insert(InsertParams(key=RadixKey(array("q", tokens)), value=kit._alloc_paged(allocator, 32)))
    cache.sanity_check()
    assert match_prefix(cache, tokens).device_prefix_len == 32


def test_a_bounded_replay_holds_back_a_window():
    cfg = CacheConfig(
        page_size=4, components=(FULL, SWA), sliding_window_size=8, decoder_swa_bounded_replay=True
    )
    cache, allocator, pool = build_fixture(cfg)
    kit = steps(core.UnifiedRadixCacheDecoderSwaBoundedReplayHoldBackFixtures, cfg=cfg)
    seq = kit._make_seq(1, 8)
    kit._insert(cache, allocator, pool, seq)
    assert kit._matched_len(cache, seq + [5000, 5001]) == len(seq) - cfg.sliding_window_size


def test_a_streaming_session_releases_its_lock():
    cfg = CacheConfig()
    cache, allocator, pool = build_fixture(cfg)
    kit = steps(insert_walk.StreamingSessionLockLifecycleFixtures, cfg=cfg)
    slot, _ = kit._later_turn(cache, allocator, pool)
    assert slot is not None
    assert cache.full_protected_size() == 8
    cache.release_session("s")
    assert (cache.full_protected_size(), cache.full_evictable_size()) == (0, 8)


def test_a_disabled_cache_ignores_the_policy(variant):
    kit = steps(core.DisabledUnifiedRadixCacheFixtures)
    params = dataclasses.replace(kit._params(disable=True), eviction_policy=variant.eviction_policy)
    assert match_prefix(UnifiedRadixCache(params), [1, 2, 3]).device_prefix_len == 0


def test_refuses_another_full_component():
    kit = steps(core.DisabledUnifiedRadixCacheFixtures)
    params = dataclasses.replace(kit._params(disable=False), eviction_policy="importance")
    with pytest.raises(ValueError, match="FakeFullComponent; use one of them"):
        UnifiedRadixCache(params)
