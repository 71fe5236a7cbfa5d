"""SGLang's Python tree core with a history on every node and an ordered index over its leaves.

Owned by the scheduler thread. The base class owns structure, sizes, locks and residency; this class
keeps the annotations right through split, insert, un-evict, evict and reset, and notes uses. The
victim is chosen in `IndexedFullComponent`; what makes a victim is `radiximp.policy`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams, MatchResult
from sglang.srt.mem_cache.unified_cache.components import BASE_COMPONENT_TYPE
from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeCore, UnifiedTreeNode
from sglang.srt.utils.rank_consensus_checker import rank_consensus

from radiximp.policy.clock import ArrivalClock
from radiximp.policy.ghosts import GhostTable, in_pieces
from radiximp.policy.gittins import GittinsPolicy
from radiximp.policy.history import NodeHistory
from radiximp.policy.victims import VictimWalk, tail_tokens
from radiximp.serving.api.hints import HintBook
from radiximp.serving.fetch.load_back import LoadBack
from radiximp.serving.metrics.tally import Tally
from radiximp.serving.tree.annotations import TreeAnnotations
from radiximp.serving.tree.counts import TreeCounts
from radiximp.serving.tree.finish import FinishReader
from radiximp.serving.tree.law_file import LawFile
from radiximp.serving.tree.observations import TreeObservations
from radiximp.serving.tree.pin_book import PinBook
from radiximp.serving.tree.pins import TreePins
from radiximp.serving.tree.questions import TreeQuestions
from radiximp.serving.tree.snapshot import TreeSnapshot
from radiximp.serving.tree.strategy import building_tree_core
from radiximp.serving.tree.use_log import UseLog, branch_hash, leave_ghost, take_ghosts
from radiximp.serving.tree.what_if import WhatIf

if TYPE_CHECKING:
    from radiximp.serving.fetch.costs import FetchCosts

logger = logging.getLogger(__name__)

# 42 bits, so that digest x 1000003 stays below 2^62 and can be reduced over ranks as int64.
_DIGEST_MASK = (1 << 42) - 1


class ImportanceTreeCore(
    TreeObservations, TreePins, TreeQuestions, TreeSnapshot, TreeAnnotations, TreeCounts, UnifiedTreeCore
):
    """Insert and match O(path); choosing a victim O(log leaves)."""

    def __init__(self, params, components) -> None:
        self.clock = ArrivalClock()
        self.is_serving = False
        self.shortfall_tokens = 0
        self.num_evictions: Counter[str] = Counter()
        self.num_evicted_tokens: Counter[str] = Counter()
        self.victim_digest = 0
        self.num_sanity_checks = 0
        self.tally = Tally()
        self.what_if = WhatIf(0)
        self.uses = UseLog(self)
        self.finishes = FinishReader()
        self.law_file: LawFile | None = None
        self.load_back: LoadBack | None = None
        self.pin_book = PinBook(self)
        self.hints = HintBook(self)
        self.fetch_costs: FetchCosts | None = None
        self.ghosts = GhostTable(0)
        with building_tree_core():
            super().__init__(params, components)
        self.policy = self.eviction_strategy.policy
        self.config = self.policy.config
        self.ghosts = GhostTable(self.config.ghost_factor)
        self._start_observations(self.config)
        self.tree_group = params.tp_cache_group
        allocator = params.token_to_kv_pool_allocator
        self._pool_tokens = 0 if allocator is None else allocator.size
        self.policy.note_capacity(self._pool_tokens)
        self.what_if = WhatIf(self.config.what_if_rate, self.page_size, self._pool_tokens)
        # A cut would lose state that lives at a node's end (SWA, Mamba), and lru drops whole leaves.
        self._can_cut = len(self.components) == 1 and not self.config.is_lru
        if self.config.is_lru:
            # Only this limit ranks by SGLang's access times; otherwise their many changes cost nothing.
            self._touch_node = self._touch_and_rank
            self._match_post_processor = self._match_and_rank

    def start_serving(
        self, tool_call_parser: str | None, host_tokens: int, observed_layers: Sequence[int] = ()
    ) -> None:
        """Log, once per process, that this core is the one in use; learn what a tool call looks like, how much
        the host holds and which layers' attention will be observed."""
        self.observed_layers = list(observed_layers)
        self.finishes = FinishReader(tool_call_parser)
        # Under write_back the tiers add up; otherwise the host holds what the device holds and more.
        held = self._pool_tokens + host_tokens if self.is_write_back else max(self._pool_tokens, host_tokens)
        self.policy.note_capacity(held)
        self.what_if.note_host(host_tokens, self.is_write_back)
        if self.config.law_path and isinstance(self.policy, GittinsPolicy):
            self.law_file = LawFile(self.config.law_path, self.policy)
            self.law_file.load()
        logger.info(
            "radiximp: policy %s on tree core %s, %s", self.policy.name, type(self).__name__, self.config
        )
        others = [ct.name for ct in self.component_types if ct != BASE_COMPONENT_TYPE]
        if others:
            logger.info(
                "radiximp: %s state is evicted in SGLang's own order, which passes over scores and pins",
                " and ".join(others),
            )

    def start_load_back(self, cache) -> None:
        """Be ready to bring content from the host without a request, if that is configured. Raises LoadBackError."""
        if self.config.load_back:
            self.load_back = LoadBack(self, cache)

    @property
    def pool_tokens(self) -> int:
        """Tokens that the device pool holds."""
        return self._pool_tokens

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
        self.uses.clear()
        self.ghosts.clear()
        self.pin_book.clear()
        self.hints.clear()
        self.what_if.forget()
        if self.load_back is not None:
            self.load_back.clear()
        policy = self.eviction_strategy.policy
        policy.restart(self.clock.now_s())
        self.evictable_device_leaves = policy.new_index(self._prefix_of)
        self.evictable_host_leaves = policy.new_index(self._prefix_of)
        self._pin_expiries: list[tuple[float, int]] = []
        self._awaited_expiry: dict[int, float] = {}
        self.pinned_tokens = 0

    def note_held(self) -> None:
        """Tell the ghost table how much the tree holds, which bounds what it remembers."""
        self.ghosts.note_held(len(self._node_arena), self._pool_tokens)

    def forget(self) -> None:
        """The model's weights changed: what was learned of reuse is dropped with the cache."""
        self.policy.forget()

    def observe_arrival(self, arrival_s: float) -> None:
        """Advance the clock to a request's arrival, which is the same number on every rank."""
        self.is_serving = True
        self.clock.observe_arrival(arrival_s)

    # ---- annotations: every way a node comes, is cut, or goes ----

    def history_of(self, node: UnifiedTreeNode) -> NodeHistory:
        """The node's history, made at the first need."""
        try:
            return node.history
        except AttributeError:
            node.history = NodeHistory(self.clock.now_s(), self.uses.tick)
            return node.history

    def _add_new_node(
        self, parent, key, value, priority=0, session_id=None, rotation_base=None
    ) -> UnifiedTreeNode:
        """As the base class; what was in the tree before comes back in its old pieces, each with its history."""
        # Spelled out, not `**kwargs`: every insert comes through here, and packing them is a good part of it.
        rest = (priority, session_id, rotation_base)
        if not self.ghosts.may_know(key.token_ids[0]):
            return self._add_piece(parent, key, value, rest)
        ghosts = take_ghosts(self, parent, key)
        self.note_wanted(ghosts)
        if not self._can_cut:
            ghosts = [ghosts[-1]] if ghosts and ghosts[-1][0] == len(key) else []
        for start, end, ghost in in_pieces(ghosts, len(key)):
            parent = self._add_piece(parent, key[start:end], value[start:end], rest, ghost)
        return parent

    def _add_piece(
        self, parent, key, value, rest: tuple, ghost: NodeHistory | None = None
    ) -> UnifiedTreeNode:
        is_next_turn = not parent.children and parent is not self.root_node
        node = UnifiedTreeCore._add_new_node(self, parent, key, value, *rest)
        # Not `history_of`, which finds out by an exception that there is none.
        node.history = history = NodeHistory(self.clock.now_s(), self.uses.tick)
        if ghost is not None:
            history.revive(ghost)
        elif is_next_turn:
            history.follow()
        return node

    def insert_host(self, node_id, key, host_value, hash_value):
        """As the base class; a node that comes from storage has its history back too."""
        result = super().insert_host(node_id, key, host_value, hash_value)
        if result.inserted_host_node is not None:
            node = self._node_arena[result.inserted_host_node]
            if not hasattr(node, "history"):
                ghosts = take_ghosts(self, node.parent, node.key)
                self.note_wanted(ghosts)
                for _, history in ghosts:
                    self.history_of(node).revive(history)
                self.history_of(node)
        return result

    def _split_node(self, key, child, split_len):
        head, action = super()._split_node(key, child, split_len)
        if not hasattr(UnifiedTreeCore, "_on_node_split"):
            self._on_node_split(head, child)
        self.touch_leaf(child)
        return head, action

    def _on_node_split(self, new_parent: UnifiedTreeNode, child: UnifiedTreeNode) -> None:
        """The head of a split takes its share of the annotations (called by patch 0004 where applied)."""
        head_tokens = len(new_parent.key)
        new_parent.history = self.history_of(child).split(head_tokens, head_tokens + len(child.key))
        new_parent.history.add_branch(branch_hash(child.key, self.page_size))
        self._await_expiry(new_parent)

    def commit_backup(self, node_id, *args, **kwargs) -> None:
        """As the base class; what has a copy below the device is cheaper to lose."""
        super().commit_backup(node_id, *args, **kwargs)
        if self.fetch_costs is not None:
            self.touch_leaf(self._node_arena[node_id])

    def _release_full_host_duplicate(self, node: UnifiedTreeNode, *args, **kwargs) -> None:
        """As the base class; without the copy the node is dear again."""
        super()._release_full_host_duplicate(node, *args, **kwargs)
        if self.fetch_costs is not None:
            self.touch_leaf(node)

    def _demote(self, node: UnifiedTreeNode, *args, **kwargs) -> None:
        """As the base class; what was said of a node's place on the device (pins, goes first) ends where it leaves it."""
        history = self.history_of(node)
        if history.pins:
            self._set_pins(node, ())
        history.goes_first = False
        super()._demote(node, *args, **kwargs)

    def _remove_leaf_from_parent(self, node: UnifiedTreeNode) -> None:
        leave_ghost(self, node)
        if self.history_of(node).pins:
            self.pinned_tokens -= len(node.key)
        super()._remove_leaf_from_parent(node)

    # ---- victims ----

    def start_walk(self, request_tokens: int) -> VictimWalk:
        """Begin to evict from the device, in the order as it is now."""
        self.settle()
        return VictimWalk(self.evictable_device_leaves, request_tokens, self.shortfall_tokens)

    def next_victim(self, walk: VictimWalk, freed_tokens: int, cache_actions: list) -> UnifiedTreeNode | None:
        """The walk's next victim, cut to what is wanted of it; None when the walk is over."""
        with self.tally.timing("choose"):
            choice = walk.next(freed_tokens)
            if choice is None:
                return None
            victim, wanted_tokens = choice
            if self._can_cut:
                self._cut_tail(victim, wanted_tokens, cache_actions)
        self.note_victim(victim, "device")
        return victim

    def _cut_tail(self, leaf: UnifiedTreeNode, wanted_tokens: int, cache_actions: list) -> None:
        """Shorten `leaf` to the tail that goes; the rest becomes its parent."""
        num_tokens = tail_tokens(len(leaf.key), wanted_tokens, self.config.trim_tokens, self.page_size)
        if num_tokens < len(leaf.key):
            _, action = self._split_node(leaf.key, leaf, len(leaf.key) - num_tokens)
            if action is not None:
                cache_actions.append(action)

    # ---- uses ----

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        """As the base class; a lookup on behalf of no request counts as the start of an anonymous one.

        Under a server every request carries its arrival and is counted when its prefix is inserted:
        the scheduler looks a waiting request up again and again, and none of that is a use.
        """
        result = UnifiedTreeCore.match_prefix(self, params)
        if params.req is None and not self.is_serving:
            self.uses.note_lookup(self._node_arena[result.best_match_node])
        return result

    def _insert_commit_step(self, state) -> None:
        UnifiedTreeCore._insert_commit_step(self, state)
        params, end_tokens = state.params, state.total_prefix_length + len(state.key)
        self.uses.note_insert(state.target_node, end_tokens, params.inserted_len, params.session_id)

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

    def _prefix_of(self, node: UnifiedTreeNode) -> tuple:
        """What ranks before the policy's key: a session's references, then pins and what was told to go first."""
        history = self.history_of(node)
        wish = 1 if history.pins else -1 if history.goes_first else 0
        if not self.enable_session_radix_cache:
            return (wish,)
        num_references = node.component_data[BASE_COMPONENT_TYPE].session_ref
        return (num_references > 0, num_references, wish)

    def rank(self, node: UnifiedTreeNode) -> tuple:
        """The node's place in the order of victims as it is now, lowest first."""
        return (*self._prefix_of(node), *self.eviction_strategy.get_priority(node))

    def _touch_and_rank(self, node: UnifiedTreeNode) -> None:
        UnifiedTreeCore._touch_node(self, node)
        self.touch_leaf(node)

    def _match_and_rank(self, params, value, best_match_node, best_match_device_node, *args, **kwargs):
        result = UnifiedTreeCore._match_post_processor(
            self, params, value, best_match_node, best_match_device_node, *args, **kwargs
        )
        self.touch_leaf(best_match_node)
        self.touch_leaf(best_match_device_node)
        return result

    @rank_consensus(same_params=["node.id", "tier"])
    def note_victim(self, node: UnifiedTreeNode, tier: str) -> None:
        """Count a victim and fold it into the digest that must agree on all ranks."""
        self.num_evictions[tier] += 1
        self.num_evicted_tokens[tier] += len(node.key)
        self.victim_digest = (self.victim_digest * 1000003 + node.id * 64 + len(node.key) + 1) & _DIGEST_MASK
