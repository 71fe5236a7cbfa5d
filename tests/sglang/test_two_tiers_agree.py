"""The replay is SGLang with a host tier too: the same requests find the same tokens on device and host.

One seeded run of requests goes through the replay tree and through a real unified radix cache with both KV pools, on
SGLang's own Python tree core; after every request the hits per tier and what is left on both tiers must be equal.
"""

from __future__ import annotations

import random
from array import array

import numpy as np
import pytest
from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

from radiximp.policy.baselines.stock import StockPolicy
from radiximp.replay.engine import hit_pages
from radiximp.replay.run import WRITE_POLICIES
from radiximp.replay.tree import ReplayTree
from tests.sglang.builders import key_of
from tests.sglang.kv_rig import KvRig

NUM_REQUESTS = 250
DEVICE_PAGES, HOST_RATIO = 120, 1.5
MAX_PROMPT_PAGES = 40


def make_prompts(seed: int) -> list[list[int]]:
    """Prompts in pages that continue, cut and branch from earlier ones."""
    rng = random.Random(seed)
    fresh = iter(range(1, 10**6))
    prompts = [[next(fresh) for _ in range(9)]]
    for _ in range(NUM_REQUESTS):
        base = rng.choice(prompts[-25:])
        if rng.random() < 0.2:
            base = []
        elif rng.random() < 0.4:
            base = base[: rng.randint(0, len(base))]
        prompts.append(
            (base + [next(fresh) for _ in range(rng.randint(0, 12))] or [next(fresh)])[:MAX_PROMPT_PAGES]
        )
    return prompts


class Served:
    """SGLang's cache, asked in pages."""

    def __init__(self, policy: str, page_size: int, write_policy: str) -> None:
        self.page_size = page_size
        self.rig = KvRig(
            DEVICE_PAGES * page_size,
            page_size,
            policy,
            write_policy=write_policy,
            host_ratio=HOST_RATIO,
            tree_core_backend="python",
        )
        self.host = self.rig.cache.cache_controller.mem_pool_host
        self.host_pages = self.host.size // page_size

    def request(self, pages: list[int]) -> tuple[int, int]:
        tokens = array("q", (page * self.page_size + i for page in pages for i in range(self.page_size)))
        match = self.rig.cache.match_prefix(MatchPrefixParams(key=key_of(tokens)))
        hits = match.device_prefix_len // self.page_size, match.host_hit_length // self.page_size
        handle, _ = self.rig.start(tokens)
        self.rig.finish(handle)
        self.rig.drain()
        return hits

    def left(self) -> tuple[int, int]:
        device = DEVICE_PAGES - self.rig.allocator.available_size() // self.page_size
        return device, (self.host.size - self.host.available_size()) // self.page_size


class Replayed:
    """The same requests to the replay tree."""

    def __init__(self, policy: str, page_size: int, write_policy: str, host_pages: int) -> None:
        self.tree = ReplayTree(
            StockPolicy(policy), page_size, host_pages, write_policy, ghost_factor=0, trim_tokens=0
        )
        self.now_s = 0.0

    def request(self, pages: list[int]) -> tuple[int, int]:
        self.now_s += 1
        tree, page_ids = self.tree, np.array(pages, np.int64)
        path = tree.match("", page_ids)
        device, host = hit_pages(path)
        tree.lock(path, 1)
        # As the rig does: it waits for the load before it makes room for what is new.
        self._make_room(host)
        tree.load_back(path)
        self._make_room(len(pages) - device - host)
        locked = list(path)
        tree.extend(path, "", page_ids[device + host :])
        tree.record(path, self.now_s)
        tree.record_end(path, "", 0, self.now_s)
        tree.back_up(path)
        tree.lock(locked, -1)
        tree._check()
        return device, host

    def _make_room(self, num_pages: int) -> None:
        short = self.tree.device_pages + num_pages - DEVICE_PAGES
        if short > 0:
            self.tree.evict(short, self.now_s)

    def left(self) -> tuple[int, int]:
        return self.tree.device_pages, self.tree.host_pages


def run(policy: str, page_size: int, write_policy: str, seed: int, replayed_as: str | None = None) -> int:
    """Drive both; tokens found on the host, or AssertionError with the request at which they part."""
    served, num_host_hits = Served(policy, page_size, write_policy), 0
    replayed = Replayed(policy, page_size, replayed_as or write_policy, served.host_pages)
    for number, pages in enumerate(make_prompts(seed)):
        found = served.request(pages)
        assert replayed.request(pages) == found, f"seed {seed}, request {number}: hits differ"
        assert replayed.left() == served.left(), f"seed {seed}, request {number}: what is left differs"
        num_host_hits += found[1]
    served.rig.close()
    return num_host_hits


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("write_policy", WRITE_POLICIES)
@pytest.mark.parametrize("policy", ["lru", "slru"])
def test_hits_per_tier_are_those_of_sglang(policy, write_policy, page_size):
    num_host_hits = sum(run(policy, page_size, write_policy, seed) for seed in range(6))
    # slru keeps on the device what is used twice, and only that is copied.
    assert num_host_hits > 100 or (policy, write_policy) == ("slru", "write_through_selective")


@pytest.mark.parametrize(
    ("served", "replayed"), [("write_through", "write_back"), ("write_back", "write_through_selective")]
)
def test_the_comparison_can_fail(served, replayed):
    with pytest.raises(AssertionError, match="differ"):
        run("lru", 1, served, seed=0, replayed_as=replayed)
