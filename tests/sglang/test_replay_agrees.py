"""The replay is SGLang: the same operations give the same hits and the same victims under every stock policy.

One seeded log drives the replay tree and a real unified radix cache on SGLang's own Python tree core; after every
operation the hit, the victims in their order and what is left must be equal.
"""

from __future__ import annotations

import random
from array import array

import numpy as np
import pytest
import torch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey

from radiximp.policy.baselines.stock import RANKS, TLRU, StockPolicy
from radiximp.replay.engine import hit_pages
from radiximp.replay.tree import ReplayTree
from tests.sglang.kv_rig import KvRig

NUM_SEEDS = 20
NUM_STEPS = 200
POOL_PAGES = 160
_TLRU_PAGES = {"threshold": 20, "next_prompt_estimate": 5}


class Served:
    """SGLang's cache, asked in pages."""

    def __init__(self, policy: str, page_size: int) -> None:
        self.page_size = page_size
        config = {key: pages * page_size for key, pages in _TLRU_PAGES.items()} if policy == "tlru" else None
        rig = KvRig(POOL_PAGES * page_size, page_size, policy, config, tree_core_backend="python")
        self.cache, self.allocator = rig.cache, rig.allocator
        self.victims: list[tuple[tuple, int]] = []
        self.held: list = []
        self._evict_leaf = self.cache.tree_core.evict_device_leaf
        self.cache.tree_core.evict_device_leaf = self._note_and_evict

    def _note_and_evict(self, node_id, is_write_back):
        node = self.cache.tree_core.node_by_id(node_id)
        num_pages, prefix = len(node.key) // self.page_size, []
        while node.parent is not None:
            prefix[:0] = list(node.key.token_ids)[:: self.page_size]
            node = node.parent
        self.victims.append((tuple(token // self.page_size for token in prefix), num_pages))
        return self._evict_leaf(node_id, is_write_back)

    def _key(self, namespace: str, pages: list[int]) -> RadixKey:
        size = self.page_size
        tokens = array("q", (page * size + offset for page in pages for offset in range(size)))
        return RadixKey(tokens, namespace or None)

    def look_up(self, namespace: str, pages: list[int]) -> int:
        match = self.cache.match_prefix(MatchPrefixParams(key=self._key(namespace, pages)))
        return match.device_prefix_len // self.page_size

    def request(self, namespace: str, pages: list[int], priority: int, is_stranger: bool) -> int | None:
        """Hit pages; None if the pool has no room. A stranger computes all of its prompt, and its copies are freed."""
        key = self._key(namespace, pages)
        match = self.cache.match_prefix(MatchPrefixParams(key=key))
        num_hit = match.device_prefix_len
        lock = self.cache.inc_lock_ref(match.last_device_node).to_dec_params()
        num_reused = 0 if is_stranger else num_hit
        num_new = len(key) - num_reused
        short = num_new - self.allocator.available_size()
        if short > 0:
            self.cache.evict(EvictParams(num_tokens=short))
        fresh = self.allocator.alloc(num_new) if num_new else torch.empty(0, dtype=torch.int64)
        if fresh is not None:
            slots = torch.cat([self.cache.path_device_indices(match.last_device_node)[:num_reused], fresh])
            self.cache.insert(
                InsertParams(key=key, value=slots, prev_prefix_len=num_reused, priority=priority)
            )
        self.cache.dec_lock_ref(match.last_device_node, lock)
        return None if fresh is None else num_hit // self.page_size

    def lock(self, namespace: str, pages: list[int]) -> None:
        node = self.cache.match_prefix(MatchPrefixParams(key=self._key(namespace, pages))).last_device_node
        self.held.append((node, self.cache.inc_lock_ref(node).to_dec_params()))

    def unlock(self, number: int) -> None:
        self.cache.dec_lock_ref(*self.held.pop(number))

    def evict(self, num_pages: int) -> None:
        self.cache.evict(EvictParams(num_tokens=num_pages * self.page_size))

    def num_pages(self) -> int:
        return POOL_PAGES - self.allocator.available_size() // self.page_size


class Replayed:
    """The same questions to the replay tree."""

    def __init__(self, policy: str, page_size: int) -> None:
        slack = {key: pages * page_size for key, pages in _TLRU_PAGES.items()}
        made = TLRU(*slack.values()) if policy == "tlru" else StockPolicy(policy)
        self.tree = ReplayTree(made, page_size, ghost_factor=0, trim_tokens=0)
        self.tree.on_victim = self._note
        self.victims: list[tuple[tuple, int]] = []
        self.held: list = []
        self.now_s = 0.0

    def _note(self, node, tier) -> None:
        num_pages, prefix = len(node), []
        while node.parent is not None:
            prefix[:0] = node.page_ids.tolist()
            node = node.parent
        self.victims.append((tuple(prefix), num_pages))

    def _match(self, namespace, pages):
        return self.tree.match(namespace, np.array(pages, np.int64))

    def look_up(self, namespace, pages):
        return hit_pages(self._match(namespace, pages))[0]

    def request(self, namespace, pages, priority, is_stranger):
        self.now_s += 1
        path = self._match(namespace, pages)
        num_hit = hit_pages(path)[0]
        self.tree.lock(path, 1)
        locked = list(path)
        num_new = len(pages) - (0 if is_stranger else num_hit)
        short = self.tree.device_pages + num_new - POOL_PAGES
        if short > 0:
            self.tree.evict(short, self.now_s)
        has_room = self.tree.device_pages + num_new <= POOL_PAGES
        if has_room:
            self.tree.extend(path, namespace, np.array(pages[num_hit:], np.int64))
            for node in path:
                node.priority = max(node.priority, priority)
            self.tree.record(path, self.now_s)
            self.tree.record_end(path, "", 0, self.now_s)
        self.tree.lock(locked, -1)
        return num_hit if has_room else None

    def lock(self, namespace, pages):
        self.held.append(self._match(namespace, pages))
        self.tree.lock(self.held[-1], 1)

    def unlock(self, number):
        self.tree.lock(self.held.pop(number), -1)

    def evict(self, num_pages):
        self.tree.evict(num_pages, self.now_s)

    def num_pages(self):
        return self.tree.device_pages


def make_log(seed: int) -> list[tuple]:
    """Requests that share, continue and branch from earlier ones, lookups, locks and evictions."""
    rng = random.Random(seed)
    pages = iter(range(1, 10**6))
    prompts: list[tuple[str, list[int]]] = [("", [next(pages) for _ in range(9)])]
    log, num_held = [], 0
    for _ in range(NUM_STEPS):
        action = rng.random()
        namespace, base = rng.choice(prompts[-12:])
        if action < 0.55:
            if rng.random() < 0.8:
                if rng.random() < 0.15:
                    namespace, base = rng.choice(("", "tenant")), []
                elif rng.random() < 0.4:
                    base = base[: rng.randint(0, len(base))]
                base = base[:40] + [next(pages) for _ in range(rng.randint(1, 12))]
                prompts.append((namespace, base))
            log.append(("request", namespace, base, rng.randrange(3), rng.random() < 0.3))
        elif action < 0.7:
            log.append(("look_up", namespace, base[: rng.randint(1, len(base))]))
        elif action < 0.76 and num_held < 2:
            num_held += 1
            log.append(("lock", namespace, base[: rng.randint(1, 30)]))
        elif action < 0.84 and num_held:
            log.append(("unlock", rng.randrange(num_held)))
            num_held -= 1
        else:
            log.append(("evict", rng.choice((0, 1, 3, 10, 40))))
    return log


def run(policy: str, page_size: int, seed: int, replayed_as: str | None = None) -> tuple[int, int]:
    """Drive both; (hit pages, victims), or AssertionError with the step at which they part."""
    served, replayed = Served(policy, page_size), Replayed(replayed_as or policy, page_size)
    num_hits = 0
    for step, (name, *arguments) in enumerate(make_log(seed)):
        outcomes = [getattr(side, name)(*arguments) for side in (served, replayed)]
        where = f"seed {seed}, step {step} ({name})"
        assert outcomes[0] == outcomes[1], f"{where}: hits differ"
        assert served.victims == replayed.victims, f"{where}: victims differ"
        assert served.num_pages() == replayed.num_pages(), f"{where}: what is left differs"
        replayed.tree._check()
        num_hits += outcomes[0] or 0
    return num_hits, len(served.victims)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("policy", [*RANKS, "tlru"])
def test_hits_and_victims_are_those_of_sglang(policy, page_size):
    hits, victims = zip(*(run(policy, page_size, seed) for seed in range(NUM_SEEDS)), strict=True)
    assert min(hits) > 100 and min(victims) > 15


@pytest.mark.parametrize(
    ("served", "replayed"),
    [("lru", "fifo"), ("lru", "slru"), ("lfu", "slru"), ("lru", "priority"), ("lru", "tlru")],
)
def test_the_comparison_can_fail(served, replayed):
    with pytest.raises(AssertionError, match="differ"):
        for seed in range(NUM_SEEDS):
            run(served, 1, seed, replayed_as=replayed)
