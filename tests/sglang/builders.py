"""Caches without a model: a real unified radix cache over a real token allocator, and a request driver."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import numpy as np
import torch
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.plugins import load_plugins

load_plugins()


def build_cache(pool_tokens: int, policy: str = "importance", config: dict | None = None, **params):
    """A full-attention cache of page size 1 over `pool_tokens` slots."""
    allocator = TokenToKVPoolAllocator(
        size=pool_tokens, dtype=torch.float16, device="cpu", kvcache=None, need_sort=False
    )
    return UnifiedRadixCache(
        CacheInitParams(
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=allocator,
            page_size=1,
            eviction_policy=policy,
            eviction_policy_config=config,
            tree_components=(ComponentType.FULL,),
            **params,
        )
    )


def build_served_cache(pool_tokens: int) -> UnifiedRadixCache:
    """The same as under a server: the clock stands at a request's arrival."""
    cache = build_cache(pool_tokens)
    cache.tree_core.observe_arrival(1e9)
    return cache


def key_of(tokens: Sequence[int], extra_key: str | None = None, cache_salt: str | None = None) -> RadixKey:
    return RadixKey(array("q", tokens), extra_key, cache_salt=cache_salt)


def hit(cache, tokens: Sequence[int], **namespace) -> int:
    """Tokens of the prompt that are on the device; a look that changes nothing."""
    return cache.tree_core.match_full_device_prefix(key_of(tokens, **namespace))[0]


def request(cache, tokens: Sequence[int], **namespace) -> int:
    """One request, start to end: match, lock, allocate (evicting what is short), insert, unlock.

    Returns the tokens it found cached.
    """
    key = key_of(tokens, **namespace)
    match = cache.match_prefix(MatchPrefixParams(key=key))
    lock = cache.inc_lock_ref(match.last_device_node)
    allocator = cache.token_to_kv_pool_allocator
    num_new = len(tokens) - match.device_prefix_len
    short = num_new - allocator.available_size()
    if short > 0:
        cache.evict_for_alloc(EvictParams(num_tokens=short))
    prefix = cache.path_device_indices(match.last_device_node)
    fresh = allocator.alloc(num_new) if num_new else prefix[:0]
    assert fresh is not None, f"{num_new} tokens short of room"
    cache.insert(
        InsertParams(key=key, value=torch.cat([prefix, fresh]), prev_prefix_len=match.device_prefix_len)
    )
    cache.dec_lock_ref(match.last_device_node, lock.to_dec_params())
    return match.device_prefix_len


def fresh_prompts():
    """A function that gives `n` token ids never given before."""
    counter = iter(range(10**6, 10**9))

    def fresh(n: int) -> list[int]:
        return [next(counter) for _ in range(n)]

    return fresh


def insert(cache, tokens: Sequence[int], **namespace) -> None:
    """Put a prompt into the tree with fresh slots."""
    slots = cache.token_to_kv_pool_allocator.alloc(len(tokens))
    cache.insert(InsertParams(key=key_of(tokens, **namespace), value=slots))


def lookup(cache, tokens: Sequence[int], **namespace) -> int:
    """Match a prompt as a request without an id would; returns the tokens on the device."""
    return cache.match_prefix(MatchPrefixParams(key=key_of(tokens, **namespace))).device_prefix_len


def victims_of_traffic(cache, num_requests: int, ask: Callable[[], object]) -> list[tuple]:
    """(tier, last use, tokens) of what conversations that come back push out, with `ask` called after every request."""
    rng, fresh, found = np.random.default_rng(3), fresh_prompts(), []
    core, note_victim = cache.tree_core, cache.tree_core.note_victim

    def note(node, tier):
        found.append((tier, node.history.last_use_tick, len(node.key)))
        return note_victim(node, tier)

    core.note_victim = note
    talks = [fresh(16) for _ in range(60)]
    for _ in range(num_requests):
        talk = talks[min(int(rng.exponential(15)), 59)]
        if len(talk) < 160:
            talk.extend(fresh(8))
        request(cache, talk)
        ask()
    return found
