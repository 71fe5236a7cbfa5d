"""Device and host eviction of full-attention KV in the order of the leaf index.

Replaces the heap that SGLang builds from every leaf at each eviction. Frees only what the
shortfall needs: the last victim is cut, and its tail goes.
"""

from __future__ import annotations

from sglang.srt.mem_cache.unified_cache.components.full import FullComponent


class IndexedFullComponent(FullComponent):
    """`FullComponent` whose next victim is the first leaf of the tree core's index."""

    def _evict_device_start(self, request_cnt: int) -> None:
        self._walk = self.tree_core.start_walk(request_cnt)

    def _evict_device_next_node(self, tracker, device_frees, host_frees, cache_actions):
        victim = self.tree_core.next_victim(self._walk, tracker[self.component_type], cache_actions)
        return None if victim is None else victim.id

    def _evict_device_end(self) -> None:
        self._walk = None

    def drive_host_eviction(self, num_tokens, tracker, device_frees, host_frees, cache_actions) -> None:
        """Free at least `num_tokens` of host KV, lowest key first; whole leaves."""
        leaves = self.tree_core.evictable_host_leaves
        self.tree_core.settle()
        while tracker[self.component_type] < num_tokens:
            with self.tree_core.tally.timing("choose"):
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
