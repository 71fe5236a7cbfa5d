"""Warm traffic is no use, no hit and no miss: it brings a prompt, and what is learned of users stays as it was."""

from __future__ import annotations

from array import array
from dataclasses import replace
from unittest import mock

import pytest
import torch
from sglang.srt.managers.schedule_batch import FINISH_LENGTH, Req
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.test.kits.unified_radix_cache.config import CONFIGS

from radiximp.replay.recorded import replay_record
from radiximp.serving.requests import WARM_RID
from tests.sglang import kit_trees
from tests.sglang.builders import build_served_cache, fresh_prompts, hit, key_of
from tests.sglang.kit_trees import TREE_CORE_NAME, Variant
from tests.sglang.test_recorded import RecordingInspector

POOL_TOKENS = 1024


@pytest.fixture
def cache():
    return build_served_cache(POOL_TOKENS)


def send(cache, prompt: list[int], seconds: float, warm: bool = False) -> int:
    """One request, a user's or warm, start to end; returns the tokens that it found."""
    core, key = cache.tree_core, key_of(prompt)
    core.observe_arrival(1e9 + seconds)
    req = Req(f"{WARM_RID}x" if warm else "user", "", array("q", prompt), SamplingParams(max_new_tokens=1))
    req.finished_reason = FINISH_LENGTH(length=1)
    match = cache.match_prefix(MatchPrefixParams(key=key, req=req))
    lock = cache.inc_lock_ref(match.last_device_node)
    num_new = len(prompt) - match.device_prefix_len
    short = num_new - cache.token_to_kv_pool_allocator.available_size()
    if short > 0:
        cache.evict_for_alloc(EvictParams(num_tokens=short))
    slots = cache.path_device_indices(match.last_device_node)
    if num_new:
        slots = torch.cat([slots, cache.token_to_kv_pool_allocator.alloc(num_new)])
    with core.uses.on_behalf_of(req):
        cache.insert(InsertParams(key=key, value=slots, prev_prefix_len=match.device_prefix_len))
    cache.dec_lock_ref(match.last_device_node, lock.to_dec_params())
    return match.device_prefix_len


def learned(cache) -> dict:
    core = cache.tree_core
    core.settle()
    law, guard = core.policy.law, core.policy.guard
    return {
        "uses": core.stats()["uses"],
        "guard": (guard.prompt_tokens, guard.hit_tokens, guard.shadow_hit_tokens),
        "spans": law.num_classes,
        "ended": core.policy._num_ended,
    }


def test_a_prewarm_counts_nothing_and_its_prompt_is_there(cache):
    fresh = fresh_prompts()
    user, warm = fresh(100), fresh(200)
    send(cache, user, 0)
    before = learned(cache)
    send(cache, warm, 10, warm=True)
    send(cache, user, 20, warm=True)
    assert learned(cache) == before
    assert cache.tree_core.stats()["warm_requests"] == 2
    assert hit(cache, warm) == 200
    (node,) = cache.tree_core.describe(key_of(warm))
    assert node["queries"] == 0
    cache.sanity_check()


def test_the_gap_between_two_uses_is_the_users(cache):
    prompt = fresh_prompts()(100)
    send(cache, prompt, 0)
    send(cache, prompt, 900, warm=True)
    send(cache, prompt, 1024)
    cache.tree_core.settle()
    (node,) = (node for node, _, _ in cache.tree_core._walk(key_of(prompt)))
    assert node.history.gap_log2_s == pytest.approx(10, abs=0.01)
    assert node.history.num_returns == 1


def test_what_was_prewarmed_ranks_as_just_used(cache):
    fresh = fresh_prompts()
    old, newer, warm = fresh(300), fresh(300), fresh(300)
    send(cache, old, 0)
    send(cache, newer, 50)
    send(cache, old, 100, warm=True)
    send(cache, warm, 101, warm=True)
    cache.tree_core.observe_arrival(1e9 + 102)
    cache.evict(EvictParams(num_tokens=300))
    assert (hit(cache, old), hit(cache, newer), hit(cache, warm)) == (300, 0, 300)


def test_what_a_prewarm_brings_back_is_nobodys_merit(cache):
    """The guard compares with an lru that would have been warmed as well: neither side gets a point for it."""
    prompt = fresh_prompts()(300)
    send(cache, prompt, 0)
    cache.tree_core.settle()
    cache.evict(EvictParams(num_tokens=POOL_TOKENS))
    send(cache, prompt, 10, warm=True)
    before = learned(cache)["guard"]
    assert send(cache, prompt, 20) == 300
    asked, hits, shadow_hits = learned(cache)["guard"]
    assert asked - before[0] == 300 and (hits, shadow_hits) == before[1:]


def test_a_record_with_warm_traffic_replays_victim_by_victim(tmp_path):
    path, fresh = tmp_path / "ops.jsonl", fresh_prompts()
    cfg = replace(CONFIGS[0], head_num=1, head_dim=8)
    variant = Variant("recorded", "importance", {"trim_tokens": 1, "record_path": str(path)}, TREE_CORE_NAME)
    with mock.patch.object(kit_trees, "ImportanceInspector", RecordingInspector):
        tree = kit_trees.build(cfg, variant)
    cache, pool = tree.cache, tree.cache.token_to_kv_pool_allocator.size
    prompts = [fresh(pool // 7) for _ in range(9)]
    for step in range(60):
        send(cache, prompts[(step * step + step // 3) % 9], 13.0 * step, warm=step % 4 == 1)
    cache.tree_core.settle()
    cache.tree_core.recorder.close()
    found = replay_record(path)
    assert '"warm"' in path.read_text()
    assert found.difference is None and found.victims > 10, found.verdict()
