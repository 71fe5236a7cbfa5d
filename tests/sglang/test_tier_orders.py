"""Prefixes moved between the tiers on order: backed up and first to go, loaded back, and what is told to go first."""

from __future__ import annotations

import pytest
from sglang.srt.mem_cache.base_prefix_cache import EvictParams

from radiximp.serving.api import commands
from radiximp.serving.fetch import tiers
from radiximp.serving.tree.namespaces import joined
from tests.sglang.builders import build_cache, fresh_prompts, hit, key_of, request
from tests.sglang.kv_rig import KvRig

POOL_TOKENS = 1024


def run(rig: KvRig, prompt: list[int], salt: str | None = None) -> None:
    handle, _ = rig.start(prompt, salt)
    rig.finish(handle)
    rig.drain()


def as_prompt(ids: list[int], salt: str | None = None) -> dict:
    return {"input_ids": ids, "extra_key": None, "cache_salt": salt, "lora_id": None}


@pytest.mark.parametrize("write_policy", ["write_through", "write_through_selective"])
def test_tier_host_is_backed_up_and_its_device_copy_goes_first(write_policy):
    rig, fresh = KvRig(POOL_TOKENS, write_policy=write_policy), fresh_prompts()
    prompt, other = fresh(300), fresh(300)
    run(rig, other)
    run(rig, prompt)
    (marked,) = commands._to_host(rig.core, [as_prompt(prompt)])["marked"]
    rig.cache.flush_pending_backups()
    rig.drain()
    assert marked == 300
    assert tiers.tokens_by_tier(rig.core, key_of(prompt)) == {"device": 300, "host": 0, "backed_up": 300}
    rig.cache.evict(EvictParams(num_tokens=300))
    assert hit(rig.cache, other) == 300, "the newer prompt was to go first"
    assert tiers.tokens_by_tier(rig.core, key_of(prompt)) == {"device": 0, "host": 300, "backed_up": 300}
    rig.check()
    rig.close()


def test_tier_host_under_write_back_is_copied_when_the_device_copy_goes():
    rig, fresh = KvRig(POOL_TOKENS, write_policy="write_back"), fresh_prompts()
    prompt, other = fresh(300), fresh(300)
    run(rig, other)
    run(rig, prompt)
    tiers.move_to_host(rig.core, key_of(prompt))
    assert tiers.tokens_by_tier(rig.core, key_of(prompt))["backed_up"] == 0
    rig.cache.evict(EvictParams(num_tokens=300))
    rig.drain()
    assert tiers.tokens_by_tier(rig.core, key_of(prompt)) == {"device": 0, "host": 300, "backed_up": 300}
    assert hit(rig.cache, other) == 300
    rig.check()
    rig.close()


def test_without_a_host_tier_there_is_one_clear_line():
    cache, prompt = build_cache(POOL_TOKENS), fresh_prompts()(100)
    request(cache, prompt)
    assert "--enable-hierarchical-cache" in commands._to_host(cache.tree_core, [as_prompt(prompt)])["error"]


def test_what_is_on_the_host_is_loaded_and_is_the_right_kv():
    rig, fresh = KvRig(POOL_TOKENS, write_policy="write_through"), fresh_prompts()
    prompt = fresh(300)
    run(rig, prompt, "a")
    rig.cache.evict(EvictParams(num_tokens=POOL_TOKENS))
    key = key_of(prompt, cache_salt="a")
    assert tiers.load(rig.core, key_of(prompt), POOL_TOKENS) == 0, "another tenant's"
    assert tiers.load(rig.core, key, 299) is None
    assert tiers.load(rig.core, key, 300) == 300
    rig.drain()
    assert hit(rig.cache, prompt, cache_salt="a") == 300
    assert tiers.load(rig.core, key, 300) == 0
    rig.check()
    rig.close()


def test_only_its_own_tail_goes_first_and_a_use_takes_that_back():
    cache, fresh = build_cache(POOL_TOKENS), fresh_prompts()
    core, system = cache.tree_core, fresh(100)
    core.observe_arrival(1e9)
    mine, other, old = system + fresh(100), system + fresh(50), fresh(100)
    for seconds, prompt in enumerate((old, other, mine)):
        core.observe_arrival(1e9 + 60 * seconds)
        request(cache, prompt)
    assert core.let_go_first(key_of(mine)) == 100, "the system prompt is shared"
    assert core.dry_run(100)[0]["age_s"] < 1
    request(cache, mine)
    core.observe_arrival(1e9 + 300)
    cache.evict(EvictParams(num_tokens=100))
    assert (hit(cache, old), hit(cache, mine)) == (0, 200)
    cache.sanity_check()


def test_the_first_tokens_are_kept_as_they_are():
    cache, prompt = build_cache(POOL_TOKENS), fresh_prompts()(300)
    request(cache, prompt)
    assert cache.tree_core.let_go_first(key_of(prompt), keep_tokens=120) == 180
    cache.evict(EvictParams(num_tokens=10))
    assert hit(cache, prompt) in range(120, 300)
    cache.sanity_check()


def test_a_pin_outranks_what_is_told_to_go_first():
    cache, fresh = build_cache(POOL_TOKENS), fresh_prompts()
    pinned, other = fresh(200), fresh(200)
    request(cache, pinned)
    request(cache, other)
    cache.tree_core.let_go_first(key_of(pinned))
    cache.tree_core.pin_book.add("pin", [key_of(pinned)], None, is_hard=True)
    cache.evict(EvictParams(num_tokens=200))
    assert (hit(cache, pinned), hit(cache, other)) == (200, 0)
    cache.sanity_check()


def test_an_adapters_prompt_is_pinned_in_its_own_namespace():
    cache, prompt = build_cache(POOL_TOKENS), fresh_prompts()(100)
    request(cache, prompt, extra_key=joined("k", "adapter-1"))

    def pinned(**namespace) -> int:
        key = commands.key_of(cache.tree_core, {**as_prompt(prompt), **namespace})
        (found,) = cache.tree_core.pin_book.add("pin", [key], 60, is_hard=False)
        return found["tokens_pinned"]

    assert pinned(extra_key="k", lora_id="adapter-1") == 100
    assert pinned(extra_key="k", lora_id="adapter-2") == 0
    assert pinned(extra_key="kadapter-1") == 0
    assert pinned(lora_id="adapter-1") == 0
