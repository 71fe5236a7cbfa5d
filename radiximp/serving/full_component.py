"""Device and host eviction of full-attention KV in the order of the leaf index.

Replaces the heap that SGLang builds from every leaf at each eviction. Frees only what the
shortfall needs: the last victim is cut, and its tail goes.
"""

from __future__ import annotations

from sglang.srt.mem_cache.unified_cache.components.full import FullComponent


class IndexedFullComponent(FullComponent):
    """`FullComponent` whose next victim is the first leaf of the tree core's index."""

    def _evict_device_start(self, request_cnt: int) -> None:
        self._evict_device_request_cnt = request_cnt
        self._shortfall_tokens = min(request_cnt, self.tree_core.shortfall_tokens or request_cnt)
        self._overrun_tokens = 1
        self._evict_device_last_node = None
        # Victims that the caller could not free (a failed write-back) stay leaves; each is offered once.
        self._refused: set = set()
        self.tree_core.settle()

    def _evict_device_next_node(self, tracker, device_frees, host_frees, cache_actions):
        core = self.tree_core
        freed_tokens = tracker[self.component_type]
        last = self._evict_device_last_node
        self._evict_device_last_node = None
        if last is not None and last in core.evictable_device_leaves:
            self._refused.add(last)
        if freed_tokens >= self._evict_device_request_cnt:
            return None
        victim = core.evictable_device_leaves.first(skip=self._refused)
        if victim is None:
            return None
        wanted_tokens = self._shortfall_tokens - freed_tokens
        if wanted_tokens <= 0:
            # The allocator hides some headroom (page rounding, a reserve): go on in growing steps.
            wanted_tokens = self._overrun_tokens
            self._overrun_tokens *= 2
        core.cut_tail(victim, wanted_tokens, cache_actions)
        core.note_victim(victim, "device")
        self._evict_device_last_node = victim
        return victim.id

    def _evict_device_end(self) -> None:
        self._evict_device_last_node = None
        self._refused = set()

    def drive_host_eviction(self, num_tokens, tracker, device_frees, host_frees, cache_actions) -> None:
        """Free at least `num_tokens` of host KV, lowest key first; whole leaves."""
        leaves = self.tree_core.evictable_host_leaves
        self.tree_core.settle()
        while tracker[self.component_type] < num_tokens:
            victim = leaves.first()
            if victim is None:
                return
            self.tree_core.note_victim(victim, "host")
            self.tree_core._evict_host_leaf(
                victim, tracker, device_frees, host_frees, cache_actions=cache_actions
            )

    # A session's references rank before the score, so a change of them moves a leaf.

    def _dec_session_coverage(self, session_id, leaf) -> None:
        super()._dec_session_coverage(session_id, leaf)
        self.tree_core.touch_path(leaf)

    def _advance_session_coverage(self, session_id, leaf, old_ancestor) -> None:
        super()._advance_session_coverage(session_id, leaf, old_ancestor)
        self.tree_core.touch_path(leaf)

    def _recede_session_coverage(self, session_id, leaf, fallback) -> None:
        super()._recede_session_coverage(session_id, leaf, fallback)
        self.tree_core.touch_path(leaf)
