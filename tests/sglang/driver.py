"""A seeded log of what a scheduler does to a cache, and a driver that applies it to one tree.

The log mixes insert (as a request that matched first, or as a stranger whose duplicate slots are
freed), match, lock, early SWA release, evict, back up, poll, load back, host eviction and flush.
"""

from __future__ import annotations

import contextlib
import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams, TreeLock
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components.base import ComponentType
from sglang.test.kits.unified_radix_cache.config import CONFIGS, CacheConfig, supports_hicache
from sglang.test.kits.unified_radix_cache.fixtures import write_backup
from sglang.test.kits.unified_radix_cache.mixins import UnifiedRadixCacheFixtures

from tests.sglang import kit_trees
from tests.sglang.kit_trees import Tree, Variant

HOST_TIERS = (None, "write_through", "write_back")

# name -> how often, of every hundred or so
WEIGHTS = {
    "insert": 34,
    "match": 14,
    "lock": 9,
    "unlock": 8,
    "release_swa": 3,
    "evict": 14,
    "flush": 0.3,
}
HOST_WEIGHTS = {"backup": 5, "poll": 8, "load_back": 10, "evict_host": 3}


def make_log(cfg: CacheConfig, seed: int, num_steps: int, has_host: bool) -> list[tuple[str, dict]]:
    """Operations with every choice made: what they meet in a cache decides nothing here."""
    rng = random.Random(seed)
    weights = WEIGHTS | (HOST_WEIGHTS if has_host else {})
    prompts = [_new_prompt(cfg, rng, [])]
    log = []
    for _ in range(num_steps):
        name = rng.choices(list(weights), list(weights.values()))[0]
        arguments = {"pick": rng.randrange(1 << 30), "flavour": rng.random()}
        if name == "insert" and rng.random() < 0.8:
            prompts = prompts[-30:] + [_new_prompt(cfg, rng, prompts)]
            arguments["prompt"] = prompts[-1]
        else:
            arguments["prompt"] = rng.choice(prompts)
        if name in ("match", "lock") and rng.random() < 0.4:
            namespace, tokens = arguments["prompt"]
            arguments["prompt"] = (namespace, tokens[: rng.randrange(1, len(tokens) + 1)])
        if name in ("evict", "evict_host"):
            share = rng.choice((0.02, 0.05, 0.3))
            for pool in ("num_tokens", "swa_num_tokens"):
                arguments[pool] = rng.randrange(int(share * cfg.kv_size) + 2)
            arguments["mamba_num"] = rng.randrange(4)
        log.append((name, arguments))
    return log


def _new_prompt(cfg: CacheConfig, rng: random.Random, prompts: list) -> tuple[tuple, list[int]]:
    """A (namespace, page-aligned tokens); most continue an earlier one, from its end or from anywhere."""
    if prompts and rng.random() < 0.75:
        namespace, base = rng.choice(prompts)
        shared = base if rng.random() < 0.5 else base[: rng.randrange(len(base) + 1)]
        shared = shared[: cfg.kv_size // 3]
    else:
        namespace, shared = rng.choice(((None, None), ("lora", None), (None, "salt"))), []
    max_pages = max(2, cfg.kv_size // cfg.page_size // 8)
    num_tokens = rng.randrange(1, min(16, max_pages) + 1) * cfg.page_size
    fresh = rng.randrange(1 << 20)
    tokens = [*shared, *range(fresh, fresh + num_tokens)]
    return namespace, tokens[: len(tokens) // cfg.page_size * cfg.page_size]


class Driver(UnifiedRadixCacheFixtures):
    """Applies operations to one tree; what `apply` returns must not depend on the tree core."""

    def __init__(self, tree: Tree):
        self.tree = tree
        self.cfg = tree.cfg
        self.cache = tree.cache
        self.allocator = tree.allocator
        self.pool = tree.req_to_token_pool
        self.held: list[TreeLock] = []

    def apply(self, name: str, arguments: dict):
        return getattr(self, name)(**arguments)

    # ---- operations ----

    def insert(self, prompt, pick, flavour):
        key = self._key(prompt)
        if flavour < 0.5:
            return self._insert_as_request(key, priority=pick % 3)
        value = self._slots(len(key))
        if value is None:
            return "no room"
        evicted_seqlens = {}
        if self.cfg.has_swa and flavour > 0.8:
            # A request whose window moved on: its first tokens have no SWA slots any more.
            num_evicted = pick % len(key) // self.cfg.page_size * self.cfg.page_size
            self.allocator.free_swa(value[:num_evicted])
            evicted_seqlens = {ComponentType.SWA: num_evicted}
        return self._insert(key, value, component_evicted_seqlens=evicted_seqlens)

    def _insert_as_request(self, key: RadixKey, priority: int):
        match = self.cache.match_prefix(MatchPrefixParams(key=key))
        num_matched = match.device_prefix_len
        lock = self.cache.lock(match.last_device_node)
        prefix = self.cache.path_device_indices(match.last_device_node)[:num_matched]
        fresh = self._slots(len(key) - num_matched)
        if fresh is None:
            self.cache.unlock(lock)
            return "no room"
        result = self._insert(key, torch.cat((prefix, fresh)), prev_prefix_len=num_matched, priority=priority)
        self.cache.unlock(lock)
        return num_matched, result

    def _insert(self, key: RadixKey, value: torch.Tensor, **kwargs):
        mamba_value = None
        if self.cfg.has_mamba:
            mamba_value = self._mamba_slot()
            if mamba_value is None:
                self.allocator.free(value[kwargs.get("prev_prefix_len", 0) :])
                return "no mamba slot"
        result = self.cache.insert(InsertParams(key=key, value=value, mamba_value=mamba_value, **kwargs))
        if mamba_value is not None and result.mamba_exist:
            self.pool.mamba_allocator.free(mamba_value)
        return result.prefix_len, result.mamba_exist

    def match(self, prompt, pick, flavour):
        return self._matched(self.cache.match_prefix(MatchPrefixParams(key=self._key(prompt))))

    def lock(self, prompt, pick, flavour):
        match = self.cache.match_prefix(MatchPrefixParams(key=self._key(prompt)))
        node_id = match.last_device_node
        if self.cache.is_root(node_id) or len(self.held) >= 6:
            return "not locked"
        skipped = (ComponentType.MAMBA,) if self.cfg.has_mamba and flavour < 0.5 else ()
        self.held.append(self.cache.lock(node_id, skip_lock_components=skipped))
        return self._matched(match)

    def unlock(self, prompt, pick, flavour):
        if not self.held:
            return "nothing held"
        self.cache.unlock(self.held.pop(pick % len(self.held)))
        return "unlocked"

    def release_swa(self, prompt, pick, flavour):
        if not self.held or not self.cfg.has_swa:
            return "nothing held"
        lock = self.held[pick % len(self.held)]
        if lock.receipt.component_lock_uuids.get(ComponentType.SWA) is None:
            return "no SWA lock"
        self.cache.release_swa(lock)
        return "released"

    def evict(self, prompt, pick, flavour, **quotas):
        params = EvictParams(
            num_tokens=quotas["num_tokens"],
            swa_num_tokens=quotas["swa_num_tokens"] if self.cfg.has_swa else 0,
            mamba_num=quotas["mamba_num"] if self.cfg.has_mamba else 0,
        )
        evict = self.cache.evict if flavour < 0.6 else self.cache.evict_for_alloc
        return evict(params)

    def backup(self, prompt, pick, flavour):
        match = self.cache.match_prefix(MatchPrefixParams(key=self._key(prompt)))
        node_id = match.last_device_node
        if self.cache.is_root(node_id) or self.cache.is_backuped(node_id):
            return "nothing to back up"
        num_written = write_backup(self.cache, node_id, write_back=self.cache.is_write_back)
        if self.cache.is_write_back:
            self.cache.writing_check(write_back=True)
        return num_written

    def poll(self, prompt, pick, flavour):
        self.cache.check_hicache_events()
        return len(self.cache.ongoing_write_through), len(self.cache.ongoing_load_back)

    def load_back(self, prompt, pick, flavour):
        match = self.cache.match_prefix(MatchPrefixParams(key=self._key(prompt)))
        if not self.cache.has_free_load_back_slot():
            self.cache.check_hicache_events()
        is_loaded = self.cache.load_back(match.best_match_node)
        self.cache.ready_to_load_host_cache()
        if flavour < 0.6 or not self.cache.is_write_back:
            # SGLang's own sanity check does not hold between load and ack under write_through.
            self.cache.check_hicache_events()
        return is_loaded, self._matched(match)

    def evict_host(self, prompt, pick, flavour, **quotas):
        component_type = self.cfg.components[pick % len(self.cfg.components)]
        amount = quotas["mamba_num" if component_type is ComponentType.MAMBA else "num_tokens"]
        return self.cache.evict_host(amount, component_type)

    def flush(self, prompt, pick, flavour):
        while self.held:
            self.cache.unlock(self.held.pop())
        if self.cache.cache_controller is not None:
            self.cache.writing_check(write_back=True)
            self.cache.check_hicache_events()
        self.cache.reset()
        self.allocator.clear()
        if self.cfg.has_mamba:
            self.pool.mamba_allocator.clear()
        return "flushed"

    # ---- helpers ----

    @staticmethod
    def _key(prompt) -> RadixKey:
        (extra_key, cache_salt), tokens = prompt
        return RadixKey(array("q", tokens), extra_key=extra_key, cache_salt=cache_salt)

    def _matched(self, match):
        indices = self.cache.path_device_indices(match.last_device_node)
        return (
            match.device_prefix_len,
            match.full_kv_hit_length,
            match.host_hit_length,
            match.swa_host_hit_length,
            match.mamba_host_hit_length,
            indices.numpy().tobytes(),
        )

    def _slots(self, num_tokens: int) -> torch.Tensor | None:
        """Slots for `num_tokens`, evicting what is missing; None if that does not suffice."""
        if num_tokens == 0:
            return torch.empty(0, dtype=torch.int64)
        shortfalls = {}
        if self.cfg.has_swa:
            shortfalls["swa_num_tokens"] = max(0, num_tokens - self.allocator.swa_available_size())
            available = self.allocator.full_available_size()
        else:
            available = self.allocator.available_size()
        shortfalls["num_tokens"] = max(0, num_tokens - available)
        if any(shortfalls.values()):
            self.cache.evict_for_alloc(EvictParams(**shortfalls))
        return self._alloc(self.allocator, num_tokens)

    def _mamba_slot(self) -> torch.Tensor | None:
        if self.pool.mamba_allocator.available_size() == 0:
            self.cache.evict(EvictParams(num_tokens=0, mamba_num=1))
        return self.pool.mamba_allocator.alloc(1)

    # ---- what must be equal ----

    def state(self) -> dict:
        """Everything a caller, an allocator, an event consumer or the next eviction can see."""
        core = self.cache.tree_core
        nodes = _nodes_in_order(core)
        index = {node.id: i for i, node in enumerate(nodes)}
        return {
            "nodes": [_node_state(core, node) for node in nodes],
            "recency": sorted(range(len(nodes)), key=lambda i: nodes[i].last_access_time),
            "lru lists": [
                [index[node_id] for node_id in core._lru_node_ids(lists[ct])]
                for lists in (core.lru_lists, core.host_lru_lists)
                for ct in core.component_types
            ],
            "evictable sizes": [core.component_evictable_size(ct) for ct in core.component_types],
            "protected sizes": [core.component_protected_size(ct) for ct in core.component_types],
            "duplicates": [index[node_id] for node_id in core.full_host_duplicates if node_id in index],
            "free slots": [free.numpy().tobytes() for free, _, _ in self.pools().values()],
            "events": [_event_state(event) for event in self.cache.take_events()],
        }

    def pools(self) -> dict[tuple[str, ComponentType], tuple[torch.Tensor, int, int]]:
        """(tier, component) -> its free list, how long that is with nothing in use, tokens per entry."""
        full, page_size = self.allocator, 1
        found = {}
        if self.cfg.has_swa:
            full, page_size = self.allocator.full_attn_allocator, self.cfg.page_size
            swa = self.allocator.swa_attn_allocator
            free = swa.get_all_free_pages()
            found["device", ComponentType.SWA] = (free, swa.size // page_size, page_size)
        free = full.get_all_free_pages()
        found["device", ComponentType.FULL] = (free, full.size // page_size, page_size)
        if self.cfg.has_mamba:
            mamba = self.pool.mamba_allocator
            found["device", ComponentType.MAMBA] = (mamba.free_slots, mamba.size, 1)
        if self.cache.host_pool_group is not None:
            for entry in self.cache.host_pool_group.entries:
                host = entry.host_pool
                free = torch.cat((host.free_slots, *host.release_slots))
                found["host", _COMPONENT_OF[entry.name]] = (free, host.logical_size, 1)
        return found

    def check_conservation(self) -> None:
        """Raise AssertionError unless every slot of every pool is either free, once, or the tree's."""
        nodes = _nodes_in_order(self.cache.tree_core)
        for (tier, ct), (free, num_entries, page_size) in self.pools().items():
            data = [node.component_data[ct] for node in nodes]
            values = [d.value if tier == "device" else d.host_value for d in data]
            num_held = sum(len(value) for value in values if value is not None)
            assert len(free.unique()) == len(free), f"{tier} {ct.name}: a slot is free twice"
            num_free, num_slots = len(free) * page_size, num_entries * page_size
            assert num_free + num_held == num_slots, (
                f"{tier} {ct.name}: {num_free} free + {num_held} held, not {num_slots}"
            )


_COMPONENT_OF = {
    PoolName.KV: ComponentType.FULL,
    PoolName.SWA: ComponentType.SWA,
    PoolName.MAMBA: ComponentType.MAMBA,
}


def _nodes_in_order(core) -> list:
    """The nodes below the root, depth first, siblings in the order of their keys."""
    nodes, stack = [], [core.root_node]
    while stack:
        node = stack.pop()
        nodes.append(node)
        stack.extend(sorted(node.children.values(), key=_key_state, reverse=True))
    return nodes[1:]


def _key_state(node) -> tuple:
    return (node.key.extra_key or "", node.key.cache_salt or "", node.key.raw_token_ids().tobytes())


def _node_state(core, node) -> tuple:
    components = []
    for ct in core.component_types:
        data = node.component_data[ct]
        values = [None if v is None else v.numpy().tobytes() for v in (data.value, data.host_value)]
        components.append((*values, data.lock_ref, data.host_lock_ref))
    return (
        _key_state(node),
        components,
        node.hit_count,
        node.priority,
        node in core.evictable_device_leaves,
        node in core.evictable_host_leaves,
        node.write_through_pending_id is not None,
        node.load_back_pending_id is not None,
    )


def _event_state(event) -> tuple:
    return type(event).__name__, *(getattr(event, name) for name in event.__struct_fields__)


@contextlib.contextmanager
def open_drivers(
    cfg: CacheConfig, host: str | None, variants: Sequence[Variant], driver_class: type[Driver] = Driver
) -> Iterator[list[Driver]]:
    """One driver per variant, each on a fresh tree of `cfg` with its own host tier."""
    # Copies are not what is tested: small rows keep them cheap.
    cfg = replace(cfg, head_num=1, head_dim=8)
    drivers = []
    try:
        for variant in variants:
            tree = kit_trees.build(cfg, variant, enable_kv_cache_events=True)
            drivers.append(driver_class(tree))
            if host is not None:
                kit_trees.attach_host_tier(tree, host)
                tree.cache.write_through_threshold = 2
        yield drivers
    finally:
        for driver in drivers:
            kit_trees.detach_host_tier(driver.tree)


def cases() -> list[tuple[CacheConfig, str | None]]:
    """Every configuration of the kit, with each host tier it supports."""
    return [(cfg, host) for cfg in CONFIGS for host in (HOST_TIERS if supports_hicache(cfg) else (None,))]


def case_id(value) -> str:
    return value.label if isinstance(value, CacheConfig) else value or "device_only"
