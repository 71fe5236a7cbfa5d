"""SGLang's own test kit for unified trees, on our tree core and, to check the tests themselves, on stock.

The wheel ships the kit's configurations, builders and test steps (`sglang/test/kits/unified_radix_cache`)
without the test methods; these drive them: here structure, locks and the host tier, in
`test_kits_requests.py` requests and single steps, in `test_kits_storage.py` storage and KV events.

What cannot run on our tree core:
- `PagedFullComponent`, `ExtraPoolFullComponent`, `FakeFullComponent`: they replace the full-attention
  component, which is ours; the combination is refused (`test_refuses_another_full_component`).
- `UnifiedTreeCoreLoadBackPendingFixtures`: calls the stock `UnifiedTreeCore` class on a mock.
- `UnifiedLRUListBoundedRefreshFixtures`: tests a linked list, without a tree.
- `RustUnifiedTreeCoreInspector`: the Rust core takes no Python policy, and its white-box build is not in the
  wheel ("Rust workspace ... was not found").
"""

from __future__ import annotations

import dataclasses

import torch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.unified_cache.components.base import ComponentType
from sglang.test.kits.unified_radix_cache import core, hicache, insert_walk, load_back
from sglang.test.kits.unified_radix_cache.config import (
    requires,
    requires_hicache,
    requires_mamba,
    requires_ps1_window4,
    requires_swa_only,
)
from sglang.test.kits.unified_radix_cache.fixtures import (
    build_fixture,
    match_prefix,
    node_children,
    node_device_value,
    node_host_value,
    node_key_length,
)

from radiximp.serving.tree.core import ImportanceTreeCore
from tests.sglang.kit_suites import define

requires_lock_path = requires(
    lambda cfg: 2 * cfg.sliding_window_size * cfg.page_size <= cfg.kv_size,
    "requires room for two windows of pages",
)


def _full_available(cfg, allocator) -> int:
    return allocator.full_available_size() if cfg.has_swa else allocator.available_size()


class Tree(core.UnifiedRadixCacheCoreFixtures):
    """Structure, locks and device eviction, for every mix of components."""

    def test_the_tree_core_is_the_one_asked_for(self):
        cache, _, _ = build_fixture(self.cfg)
        is_ours = isinstance(cache.tree_core, ImportanceTreeCore)
        self.assertEqual(is_ours, self.variant.eviction_policy == "importance")

    def test_what_was_inserted_is_matched(self):
        cache, allocator, pool = build_fixture(self.cfg)
        seq = self._make_seq(1, 3)
        result = self._insert(cache, allocator, pool, seq)
        self.assertEqual(result.prefix_len, 0)
        match = match_prefix(cache, seq)
        self.assertEqual(match.device_prefix_len, len(seq))
        self.assertEqual(len(cache.path_device_indices(match.last_device_node)), len(seq))
        cache.sanity_check()

    def test_eviction_returns_every_slot(self):
        cache, allocator, pool = build_fixture(self.cfg)
        before = _full_available(self.cfg, allocator)
        for start in (1, 1000, 2000):
            self._insert(cache, allocator, pool, self._make_seq(start, 2))
        used = before - _full_available(self.cfg, allocator)
        self.assertEqual(used, 6 * self.cfg.page_size)
        result = cache.evict(EvictParams(num_tokens=used))
        self.assertEqual(result.num_tokens_evicted, used)
        self.assertEqual(_full_available(self.cfg, allocator), before)
        self.assertEqual(cache.tree_core.get_all_node_ids(), [cache.root_node_handle()])
        cache.sanity_check()

    def test_a_chain_goes_tail_first(self):
        cache, allocator, pool = build_fixture(self.cfg)
        chain = self._build_chain_pages(cache, allocator, pool, 4)
        for node in reversed(chain):
            cache.evict(EvictParams(num_tokens=1))
            self.assertFalse(cache.tree_core.contains_node(node))
            cache.sanity_check()

    def test_a_locked_path_stays(self):
        cache, allocator, pool = build_fixture(self.cfg)
        locked, other = self._make_seq(1, 3), self._make_seq(1000, 3)
        for seq in (locked, other):
            self._insert(cache, allocator, pool, seq)
        lock = cache.lock(match_prefix(cache, locked).last_device_node)
        cache.evict(EvictParams(num_tokens=self.cfg.kv_size))
        self.assertEqual(match_prefix(cache, locked).full_kv_hit_length, len(locked))
        self.assertEqual(match_prefix(cache, other).full_kv_hit_length, 0)
        self.assertEqual(cache.full_protected_size(), len(locked))
        cache.unlock(lock)
        self.assertEqual(cache.full_protected_size(), 0)
        cache.evict(EvictParams(num_tokens=self.cfg.kv_size))
        self.assertEqual(match_prefix(cache, locked).full_kv_hit_length, 0)
        cache.sanity_check()

    def test_a_branch_splits_the_shared_prefix(self):
        cache, allocator, pool = build_fixture(self.cfg)
        shared = self._make_seq(1, 2)
        for start in (1000, 2000):
            self._insert(cache, allocator, pool, shared + self._make_seq(start, 2))
        head = [n for n in cache.tree_core.get_all_node_ids() if len(node_children(cache, n)) == 2]
        self.assertEqual([node_key_length(cache, n) for n in head], [len(shared)])
        cache.sanity_check()

    def test_a_flush_empties_the_tree(self):
        cache, allocator, pool = build_fixture(self.cfg)
        self._insert(cache, allocator, pool, self._make_seq(1, 3))
        cache.reset()
        self.assertEqual(cache.total_size()[0], 0)
        self.assertEqual(cache.full_evictable_size(), 0)
        cache.sanity_check()

    @requires_swa_only
    def test_a_match_makes_a_window_most_recent(self):
        cache, allocator, pool = build_fixture(self.cfg)
        first, second = self._make_seq(1, 2), self._make_seq(1000, 2)
        for seq in (first, second):
            self._insert(cache, allocator, pool, seq)
        leaf = match_prefix(cache, first).last_device_node
        if cache.tree_core.is_root(leaf):
            self.skipTest("shorter than the window")
        self.assertEqual(self._swa_lru_order(cache)[0], leaf)


class HostTier(hicache.UnifiedRadixCacheHiCacheFixtures, load_back.UnifiedRadixCacheLoadBackFixtures):
    """Back up, demote and load back; the bytes come back as they went."""

    @requires_hicache
    def test_load_back_restores_the_kv(self):
        cache, allocator, pool = self._build_hicache_fixture()
        seq = self._make_seq(1, 3)
        self._insert(cache, allocator, pool, seq)
        leaf = match_prefix(cache, seq).last_device_node
        self._fill_full_kv(allocator, cache.path_device_indices(leaf), marker=5)
        state = node_device_value(cache, leaf, ComponentType.MAMBA) if self.cfg.has_mamba else None
        if state is not None:
            self._fill_mamba_state(pool, state, 3)
            before = self._snapshot_mamba_state(pool, state)
        self._backup_node(cache, leaf)
        cache.evict(EvictParams(num_tokens=len(seq)))
        match = match_prefix(cache, seq)
        self.assertEqual((match.device_prefix_len, match.host_hit_length), (0, len(seq)))
        self._load_back_node(cache, match.best_match_node)
        match = match_prefix(cache, seq)
        self.assertEqual(match.device_prefix_len, len(seq))
        keys, values = self._snapshot_full_kv(allocator, cache.path_device_indices(match.last_device_node))
        self.assertTrue(bool((keys == 5).all() and (values == 6).all()))
        if state is not None:
            loaded = node_device_value(cache, match.last_device_node, ComponentType.MAMBA)
            after = self._snapshot_mamba_state(pool, loaded)
            self.assertTrue(torch.equal(before[0], after[0]))
            self.assertTrue(all(map(torch.equal, before[1], after[1])))
        cache.sanity_check()

    @requires_hicache
    def test_host_eviction_drops_what_is_on_the_host_only(self):
        cache, allocator, pool = self._build_hicache_fixture()
        for start in (1, 1000):
            self._insert(cache, allocator, pool, self._make_seq(start, 2))
        self._backup_tree(cache)
        host = cache.cache_controller.mem_pool_host
        before = host.available_size()
        cache.evict(EvictParams(num_tokens=self.cfg.kv_size))
        self.assertEqual(cache.evict_host(4 * self.cfg.page_size), 4 * self.cfg.page_size)
        self.assertEqual(host.available_size(), before + 4 * self.cfg.page_size)
        self.assertEqual(cache.tree_core.get_all_node_ids(), [cache.root_node_handle()])
        cache.sanity_check()

    @requires_hicache
    def test_write_back_demotes_instead_of_dropping(self):
        cache, allocator, pool = build_fixture(self.cfg)
        self._init_hicache(cache, write_policy="write_back")
        seq = self._make_seq(1, 2)
        self._insert(cache, allocator, pool, seq)
        result = cache.evict(EvictParams(num_tokens=len(seq)))
        self.assertEqual(result.num_tokens_evicted, len(seq))
        self.assertEqual(match_prefix(cache, seq).host_hit_length, len(seq))
        cache.sanity_check()

    @requires_mamba
    @requires_hicache
    def test_an_internal_mamba_state_is_backed_up_before_it_goes(self):
        cache, _, seq = self._build_internal_mamba_fixture("write_back")
        node = next(n for n in node_children(cache, cache.root_node_handle()))
        cache.evict(EvictParams(num_tokens=0, mamba_num=2))
        self.assertIsNone(node_device_value(cache, node, ComponentType.MAMBA))
        self.assertIsNotNone(node_host_value(cache, node, ComponentType.MAMBA))
        self.assertEqual(match_prefix(cache, seq).mamba_host_hit_length, 1)
        cache.sanity_check()

    @requires_swa_only
    def test_an_internal_swa_window_is_backed_up_before_it_goes(self):
        cache, _, seq, longer = self._build_internal_swa_fixture("write_back")
        cache.evict(EvictParams(num_tokens=0, swa_num_tokens=self.cfg.kv_size))
        match = match_prefix(cache, seq)
        self.assertGreater(match.swa_host_hit_length, 0)
        self.assertEqual(match_prefix(cache, longer).full_kv_hit_length, len(longer))
        cache.sanity_check()


class Locks(insert_walk.SegmentLockProtocolFixtures):
    """The kit's lock receipts on sliding-window trees."""

    @requires_swa_only
    @requires_lock_path
    def test_a_receipt_of_another_node_is_rejected(self):
        cache, allocator, leaf = self._leaf_with_lock_path()
        lock = cache.lock(leaf)
        receipt = dataclasses.replace(lock.receipt, node_id=None)
        self._assert_unanchored_release_rejected(
            cache,
            allocator,
            leaf,
            release=lambda: cache.dec_lock_ref(leaf, receipt),
            unlock=lambda: cache.unlock(lock),
        )

    @requires_swa_only
    @requires_lock_path
    def test_the_window_segment_is_locked_and_released(self):
        cache, _, leaf = self._leaf_with_lock_path()
        segment = self._segment(cache, leaf, self.cfg.sliding_window_size)
        lock = cache.lock(leaf)
        self.assertTrue(all(self._swa_ref(cache, node) == 1 for node in segment))
        cache.release_swa(lock)
        self.assertTrue(all(self._swa_ref(cache, node) == 0 for node in segment))
        cache.unlock(lock)
        cache.sanity_check()


class LockFuzz(insert_walk.SegmentLockFuzzFixtures):
    """The kit's own random walk over locks, window releases and evictions."""

    @requires_ps1_window4
    def test_seeds(self):
        for seed in range(20):
            self._run_seed(seed)


class InsertWalk(insert_walk.ResumableInsertWalkSWAFixtures):
    @requires_ps1_window4
    def test_recovering_a_window_reports_what_the_tree_adopted(self):
        for lock_full in (False, True):
            result, num_tokens = self._recover_swa_tombstone_with_tracking(lock_full=lock_full)
            self.assertEqual(result.adopted_ranges[ComponentType.SWA], [(0, num_tokens)])


for _suite in (Tree, HostTier, Locks, LockFuzz, InsertWalk):
    define(_suite, globals())
del _suite
