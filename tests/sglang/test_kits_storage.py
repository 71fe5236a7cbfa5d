"""SGLang's kit for the storage tier (the `file` backend) and for KV events, on our tree core and on stock."""

from __future__ import annotations

from array import array

import torch
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle, EvictParams
from sglang.test.kits.unified_radix_cache import kv_events, storage
from sglang.test.kits.unified_radix_cache.config import (
    CONFIGS,
    requires,
    requires_hicache,
    requires_swa_only,
)
from sglang.test.kits.unified_radix_cache.fixtures import build_fixture, match_prefix, write_backup

from tests.sglang.kit_suites import define

REQUEST = CacheRequestHandle("request", 0)
requires_no_mamba = requires(lambda cfg: not cfg.has_mamba, "the kit's requests here are mocks")


class Storage(storage.UnifiedRadixCacheStorageFixtures):
    """A second cache finds in storage what the first one wrote there."""

    @requires_hicache
    def test_a_prefetch_restores_the_kv(self):
        folder, seq = self._make_storage_dir(), self._buffer_swa_seq()
        keys, values = self._l3_produce(folder, seq, marker=4)
        cache, allocator, _ = self._l3_consumer(folder)
        self._consume_prefetch(cache, seq, REQUEST)
        match = match_prefix(cache, seq)
        self.assertEqual((match.device_prefix_len, match.host_hit_length), (0, len(seq)))
        self._load_back_node(cache, match.best_match_node)
        match = match_prefix(cache, seq)
        self.assertEqual(match.device_prefix_len, len(seq))
        loaded = self._snapshot_full_kv(allocator, cache.path_device_indices(match.last_device_node))
        self.assertTrue(torch.equal(loaded[0], keys) and torch.equal(loaded[1], values))
        cache.sanity_check()

    @requires_hicache
    @requires_no_mamba
    def test_buffer_mode_trims_what_a_sibling_published(self):
        self._assert_sibling_head_is_trimmed(
            self._make_storage_dir(), self._buffer_swa_seq(), window_sized=False
        )

    @requires_swa_only
    def test_buffer_mode_reuses_full_kv_under_a_lost_window(self):
        folder, seq = self._make_storage_dir(), self._buffer_swa_seq()
        self._produce_buffer_l3(folder, seq, marker=3)
        live_tail = self.cfg.page_size if self.cfg.page_size < self.cfg.sliding_window_size else 0
        self._assert_masked_full_is_reused(folder, seq, live_tail)

    @requires_swa_only
    def test_a_window_that_one_rank_lacks_is_taken_by_none(self):
        folder, seq = self._setup_swa_tp_prefetch()
        for drop_swa in (False, True):
            cache, _, _ = self._l3_consumer(folder)
            self._patch_tp_prefetch_sync(cache, drop_swa=drop_swa)
            self._consume_prefetch(cache, seq, REQUEST)
            self.assertEqual(self._swa_host_on_path(cache, seq), not drop_swa)
            cache.sanity_check()


class Prefetched(storage.UnifiedRadixPrefetchCorruptionFixtures):
    """Host-only nodes that a prefetch hangs below device nodes."""

    @property
    def ps(self) -> int:
        return self.cfg.page_size

    def test_a_host_child_outlives_its_parents_device_copy(self):
        cache, allocator, _ = build_fixture(self.cfg)
        self._init_hicache(cache, write_policy="write_through")
        seq = list(range(4 * self.ps))
        leaf = self._insert_device(cache, allocator, seq)
        write_backup(cache, leaf, write_back=True)
        cache.writing_check(write_back=True)
        child = self._attach_host_child(cache, leaf, 100_000)
        cache.evict(EvictParams(num_tokens=len(seq)))
        self.assertTrue(cache.tree_core.contains_node(leaf) and cache.tree_core.contains_node(child))
        longer = seq + list(range(100_000, 100_000 + 2 * self.ps))
        self.assertEqual(match_prefix(cache, longer).host_hit_length, len(longer))
        cache.sanity_check()


class Backfill(storage.UnifiedRadixCacheStorageAttachBackfillFixtures):
    """Page hashes of nodes that were there before storage was attached."""

    @property
    def prefix_tokens(self) -> array:
        return array("q", range(4 * self.cfg.page_size))

    @property
    def suffix_tokens(self) -> array:
        return array("q", range(1000, 1000 + 4 * self.cfg.page_size))

    def test_late_hashes_equal_early_ones(self):
        early = self._build_two_level_tree(storage_on_from_the_start=True)
        late = self._build_two_level_tree(storage_on_from_the_start=False)
        self.assertEqual(late.tree_core.backfill_missing_hash_values(), 2)
        self.assertEqual(self._hashes_by_token_ids(early), self._hashes_by_token_ids(late))


class AnchorLocks(storage.AnchorLockOutcomePolicyFixtures):
    _REQ = REQUEST
    _PREFIX = (1, 2, 3)

    def test_a_resident_prefix_is_found_without_a_lock(self):
        resident = self._make_seq(1, 4)
        cache, pipeline = self._make_buffer_cache(resident=resident)
        self.assertEqual(match_prefix(cache, resident).device_prefix_len, len(resident))
        self.assertEqual(pipeline.anchor_locks, {})
        cache.sanity_check()


class Events(kv_events.UnifiedRadixCacheKVEventsFixtures):
    """An event consumer can follow which blocks are where."""

    def _blocks(self, start: int, num_pages: int) -> list[int]:
        return list(range(start, start + num_pages * self.cfg.page_size))

    def test_what_was_stored_is_what_is_removed(self):
        cache, allocator, _ = build_fixture(self.cfg, enable_kv_cache_events=True)
        cache.take_events()
        for start in (1, 1000):
            self._insert(cache, allocator, self._blocks(start, 2))
        stored = self._event_hashes(self._stored_events(cache))
        self.assertEqual(len(stored), 4)
        cache.evict(EvictParams(num_tokens=self.cfg.kv_size))
        self.assertEqual(sorted(self._event_hashes(self._removed_events(cache))), sorted(stored))

    def test_namespaces_publish_different_blocks(self):
        cache, allocator, _ = build_fixture(self.cfg, enable_kv_cache_events=True)
        cache.take_events()
        for salt in (None, "a", "b"):
            self._insert(cache, allocator, self._blocks(1, 2), cache_salt=salt)
        hashes = self._event_hashes(self._stored_events(cache))
        self.assertEqual(len(set(hashes)), 6)

    def test_a_trimmed_leaf_removes_its_tail_only(self):
        cache, allocator, _ = build_fixture(self.cfg, enable_kv_cache_events=True)
        cache.take_events()
        num_pages = max(4, 160 // self.cfg.page_size)
        tokens = self._blocks(1, num_pages)
        self._insert(cache, allocator, tokens)
        stored = self._event_hashes(self._stored_events(cache))
        kept_tokens = len(tokens) - cache.evict(EvictParams(num_tokens=1)).num_tokens_evicted
        self.assertEqual(kept_tokens > 0, self.variant.eviction_policy == "importance")
        removed = self._event_hashes(self._removed_events(cache))
        self.assertEqual(removed, stored[kept_tokens // self.cfg.page_size :])
        self.assertEqual(match_prefix(cache, tokens).device_prefix_len, kept_tokens)

    def test_tiers_publish_their_own_events(self):
        cache, allocator, _ = build_fixture(self.cfg, enable_kv_cache_events=True)
        self._init_hicache(cache)
        cache.take_events()
        seq = self._blocks(1, 2)
        self._insert(cache, allocator, seq)
        on_device = self._event_hashes(self._stored_events(cache, medium="GPU"))
        leaf = self._leaf_for(cache, seq)
        self._backup_node(cache, leaf)
        self.assertEqual(self._event_hashes(self._stored_events(cache, medium="CPU_PINNED")), on_device)
        cache.evict(EvictParams(num_tokens=len(seq)))
        self.assertEqual(self._event_hashes(self._removed_events(cache, medium="GPU")), on_device)
        self._load_back_node(cache, leaf)
        self.assertEqual(self._event_hashes(self._stored_events(cache, medium="GPU")), on_device)


FULL_ONLY = [cfg for cfg in CONFIGS if len(cfg.components) == 1]
define(Storage, globals(), [cfg for cfg in CONFIGS if cfg.page_size != 128])
for _suite in (Prefetched, Backfill, AnchorLocks, Events):
    define(_suite, globals(), FULL_ONLY)
del _suite
