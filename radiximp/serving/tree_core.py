"""SGLang's Python tree core with a history on every node and an ordered index over its leaves.

Owned by the scheduler thread. The base class owns structure, sizes, locks and residency; this class
keeps the annotations right through split, insert, un-evict, evict and reset, and records uses. The
victim is chosen in `IndexedFullComponent`; what makes a victim is `radiximp.policy`.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections import Counter

from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams, MatchResult
from sglang.srt.mem_cache.unified_cache.components import BASE_COMPONENT_TYPE
from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeCore, UnifiedTreeNode
from sglang.srt.utils.rank_consensus_checker import rank_consensus

from radiximp.policy.clock import ArrivalClock
from radiximp.policy.ghosts import GhostTable
from radiximp.policy.history import NodeHistory
from radiximp.policy.leaf_index import LeafIndex
from radiximp.policy.prefix_digest import extended, namespace_hasher
from radiximp.serving.strategy import building_tree_core
from radiximp.serving.tree_annotations import TreeAnnotations

logger = logging.getLogger(__name__)

# 42 bits, so that digest x 1000003 stays below 2^62 and can be reduced over ranks as int64.
_DIGEST_MASK = (1 << 42) - 1

# Lookups wait for the next insert, eviction or question; so many at most.
_MAX_LOOKUPS = 256


class ImportanceTreeCore(TreeAnnotations, UnifiedTreeCore):
    """Insert and match O(path); choosing a victim O(log leaves)."""

    def __init__(self, params, components) -> None:
        self.clock = ArrivalClock()
        self.is_serving = False
        self.shortfall_tokens = 0
        self._tick = 0
        self._num_queries = 0
        self._lookup_query = 0
        self._lookups: list[tuple[UnifiedTreeNode, float]] = []
        self._insert_query = 0
        self._insert_session: str | None = None
        self.num_evictions: Counter[str] = Counter()
        self.num_evicted_tokens: Counter[str] = Counter()
        self.victim_digest = 0
        self.ghosts: GhostTable | None = None
        with building_tree_core():
            super().__init__(params, components)
        self.config = self.eviction_strategy.policy.config
        self.policy = self.eviction_strategy.policy
        self.ghosts = GhostTable(self.config.ghost_factor)
        allocator = params.token_to_kv_pool_allocator
        self._pool_tokens = 0 if allocator is None else allocator.size

    def reset(self) -> None:
        """Drop the tree and all that was learned of its nodes: histories, pins, importance, ghosts."""
        if self.num_evictions:
            logger.info(
                "radiximp: flush after %d device and %d host evictions, victim digest %d",
                self.num_evictions["device"],
                self.num_evictions["host"],
                self.victim_digest,
            )
        super().reset()
        self._lookups.clear()
        rank = self._rank
        self.evictable_device_leaves = LeafIndex(rank)
        self.evictable_host_leaves = LeafIndex(rank)
        self._pin_expiries: list[tuple[float, int]] = []
        self.pinned_tokens = 0
        if self.ghosts is not None:
            self.ghosts.clear()

    def announce(self) -> None:
        """Log, once per process, that this core is the one in use."""
        logger.info(
            "radiximp: policy %s on tree core %s, %s", self.policy.name, type(self).__name__, self.config
        )

    def _rank(self, node: UnifiedTreeNode) -> tuple:
        key = self.eviction_strategy.get_priority(node)
        if not self.enable_session_radix_cache:
            return key
        num_references = node.component_data[BASE_COMPONENT_TYPE].session_ref
        return (num_references > 0, num_references, *key)

    # ---- structure: every way a node comes, is cut, or goes ----

    def _new_node(self, priority: int = 0) -> UnifiedTreeNode:
        node = super()._new_node(priority)
        node.history = NodeHistory(self.clock.now_s(), self._tick)
        return node

    def _add_new_node(self, parent, key, value, **kwargs) -> UnifiedTreeNode:
        node = super()._add_new_node(parent, key, value, **kwargs)
        self.ghosts.note_nodes(len(self._node_arena))
        self._take_ghost(node)
        return node

    def _split_node(self, key, child, split_len):
        head, action = super()._split_node(key, child, split_len)
        if not hasattr(UnifiedTreeCore, "_on_node_split"):
            self._on_node_split(head, child)
        self.touch_leaf(child)
        return head, action

    def _on_node_split(self, new_parent: UnifiedTreeNode, child: UnifiedTreeNode) -> None:
        """The head of a split takes its share of the annotations (called by patch 0004 where applied)."""
        head_tokens = len(new_parent.key)
        new_parent.history = child.history.split(head_tokens, head_tokens + len(child.key))
        if new_parent.history.pin_expires_s < math.inf:
            heapq.heappush(self._pin_expiries, (new_parent.history.pin_expires_s, new_parent.id))

    def _remove_leaf_from_parent(self, node: UnifiedTreeNode) -> None:
        self._leave_ghost(node)
        if node.history.num_pins:
            self.pinned_tokens -= len(node.key)
        super()._remove_leaf_from_parent(node)

    def cut_tail(self, leaf: UnifiedTreeNode, wanted_tokens: int, cache_actions: list) -> None:
        """Shorten `leaf` to its last `wanted_tokens`, page-aligned up; the rest becomes its parent.

        Does nothing where a cut would lose state that lives at a node's end (SWA, Mamba).
        """
        if self.config.is_lru or not self.config.trim_leaves or len(self.components) > 1:
            return
        tail_tokens = -(-wanted_tokens // self.page_size) * self.page_size
        if tail_tokens < len(leaf.key):
            _, action = self._split_node(leaf.key, leaf, len(leaf.key) - tail_tokens)
            if action is not None:
                cache_actions.append(action)

    # ---- uses: one request is one use ----

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        """As the base class; a lookup on behalf of no request counts as the start of an anonymous one.

        Under a server every request carries its arrival and is counted when its prefix is inserted:
        the scheduler looks a waiting request up again and again, and none of that is a use.
        """
        result = super().match_prefix(params)
        if params.req is None and not self.is_serving:
            self._lookups.append((self._node_arena[result.best_match_node], self.clock.now_s()))
            if len(self._lookups) > _MAX_LOOKUPS:
                self.settle_uses()
        return result

    def settle_uses(self) -> None:
        """Record the lookups made since the last insert, eviction or question."""
        for node, now_s in self._lookups:
            self._lookup_query = self._next_query()
            while node is not self.root_node:
                self._record_use(node, self._lookup_query, now_s)
                node = node.parent
        self._lookups.clear()

    def begin_insert(self, params):
        """As the base class; the insert that follows an anonymous lookup belongs to the same request."""
        self.settle_uses()
        self._insert_query = self._lookup_query or self._next_query()
        self._lookup_query = 0
        self._insert_session = params.session_id
        return super().begin_insert(params)

    def _finish_insert_walk_node(self, state, node, prefix_len) -> None:
        node_end = state.total_prefix_length + prefix_len
        super()._finish_insert_walk_node(state, node, prefix_len)
        if node_end > state.params.inserted_len:
            self._record_use(node, self._insert_query, self.clock.now_s())

    def _insert_commit_step(self, state) -> None:
        super()._insert_commit_step(state)
        if state.is_new_leaf:
            self._record_use(state.target_node, self._insert_query, self.clock.now_s())

    def _next_query(self) -> int:
        self._num_queries += 1
        if not self.is_serving:
            self.clock.step()
        return self._num_queries

    def _record_use(self, node: UnifiedTreeNode, query: int, now_s: float) -> None:
        history = node.history
        if history.last_query == query:
            return
        history.last_query = query
        self._tick += 1
        self.policy.record_use(history, now_s, self._tick)
        if self._insert_session is not None:
            history.add_session(self.session_hash(self._insert_session))
        self.touch_leaf(node)

    def observe_arrival(self, arrival_s: float) -> None:
        """Advance the clock to a request's arrival, which is the same number on every rank."""
        self.is_serving = True
        self.clock.observe_arrival(arrival_s)

    # ---- order: report every change of a leaf's key ----

    def touch_leaf(self, node: UnifiedTreeNode) -> None:
        """Say that a node's key may have changed."""
        self.evictable_device_leaves.touch(node)
        self.evictable_host_leaves.touch(node)

    def touch_path(self, node: UnifiedTreeNode | None) -> None:
        """Say so for a node and its ancestors."""
        while node is not None:
            self.touch_leaf(node)
            node = node.parent

    def _touch_node(self, node: UnifiedTreeNode) -> None:
        super()._touch_node(node)
        if self.config.is_lru:
            self.touch_leaf(node)

    def _match_post_processor(self, params, value, best_match_node, best_match_device_node, *args, **kwargs):
        result = super()._match_post_processor(
            params, value, best_match_node, best_match_device_node, *args, **kwargs
        )
        if self.config.is_lru:
            self.touch_leaf(best_match_node)
            self.touch_leaf(best_match_device_node)
        return result

    @rank_consensus(same_params=["node.id", "tier"])
    def note_victim(self, node: UnifiedTreeNode, tier: str) -> None:
        """Count a victim and fold it into the digest that must agree on all ranks."""
        self.num_evictions[tier] += 1
        self.num_evicted_tokens[tier] += len(node.key)
        self.victim_digest = (self.victim_digest * 1000003 + node.id * 64 + len(node.key) + 1) & _DIGEST_MASK

    # ---- ghosts ----

    def _prefix_hasher(self, node: UnifiedTreeNode, parent: UnifiedTreeNode):
        """Hasher of the prefix that ends with `parent`, in the namespace of `node`; kept on the nodes."""
        chain = []
        while parent is not self.root_node and getattr(parent, "prefix_hasher", None) is None:
            chain.append(parent)
            parent = parent.parent
        if parent is self.root_node:
            hasher = namespace_hasher(node.key.extra_key, node.key.cache_salt)
        else:
            hasher = parent.prefix_hasher
        for ancestor in reversed(chain):
            hasher = extended(hasher, ancestor.key.raw_token_ids()[: len(ancestor.key)])
            ancestor.prefix_hasher = hasher
        return hasher

    def _leave_ghost(self, node: UnifiedTreeNode) -> None:
        if self.ghosts.capacity == 0:
            return
        start = self._prefix_hasher(node, node.parent)
        token_ids = node.key.raw_token_ids()
        num_tokens = len(node.key)
        self.ghosts.put(
            extended(start, token_ids[: self.page_size]).digest(),
            num_tokens,
            extended(start, token_ids[:num_tokens]).digest(),
            node.history,
        )

    def _take_ghost(self, node: UnifiedTreeNode) -> None:
        if not len(self.ghosts):
            return
        start = self._prefix_hasher(node, node.parent)
        token_ids = node.key.raw_token_ids()
        ghost = self.ghosts.take(
            len(node.key), self.page_size, lambda n: extended(start, token_ids[:n]).digest()
        )
        if ghost is not None:
            node.history.copy_uses(ghost)
            node.history.importance = ghost.importance
