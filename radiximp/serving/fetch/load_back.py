"""Proactive load-back: what will be asked for soon comes from the host to the device while the server idles.

The HTTP process orders a step when no request is in flight; the order reaches every rank in the order of the requests, and
each decides from what is the same on all ranks. A step that finds work queued does nothing, and a load that a request
overtakes is waited for layer by layer, as SGLang waits for a load of its own.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from radiximp.serving.fetch.failure import start_own_loads

if TYPE_CHECKING:
    from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeNode
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    from radiximp.serving.tree.core import ImportanceTreeCore

_MAX_HOTSPOTS = 64
# Ended requests whose return is looked for; the oldest is forgotten.
_MAX_ENDED = 1024
# "Soon": this likely within so many seconds, by the law of reuse.
HORIZON_S = 30.0
MIN_CHANCE = 0.25
# What was brought, not used and evicted is not brought again at once.
_AGAIN_AFTER_S = 30.0
_MAX_LOST = 4096
# Less is not worth a cut and a copy, unless it is all that is missing.
_MIN_TOKENS = 64


class LoadBackError(ValueError):
    """This cache cannot bring anything without a request; the message says why and what to do."""


class LoadBack:
    """Owned by a tree core. step: O(hotspots + ended requests) and the copies it starts."""

    def __init__(self, core: ImportanceTreeCore, cache: UnifiedRadixCache) -> None:
        """Raises LoadBackError where SGLang offers no load-back without a request."""
        others = [ct.name for ct in core.component_types][1:]
        if cache.cache_controller is None:
            raise LoadBackError("load_back: needs a host tier; add --enable-hierarchical-cache")
        if others or cache.linker is not None or cache.buffer_pipeline is not None:
            what = f"{' and '.join(others)} state" if others else "the host tier of this server"
            raise LoadBackError(f"load_back: {what} comes back with a request only; drop load_back")
        self._core = core
        self._cache = cache
        self._config = core.config
        self.num_steps = self.num_tokens = self.num_used_tokens = self.num_lost_tokens = 0
        self.clear()

    def clear(self) -> None:
        """The tree is gone."""
        self._hotspots: list = []
        self._hotspots_as_of = -1
        self._ended: OrderedDict[int, int] = OrderedDict()
        self._unused: dict[int, tuple[int, int]] = {}
        self._lost_s: OrderedDict[int, float] = OrderedDict()

    def note_end(self, node: UnifiedTreeNode) -> None:
        """A request ended on `node`: its next turn may come back."""
        self._ended.pop(node.id, None)
        self._ended[node.id] = self._core.history_of(node).last_use_tick
        if len(self._ended) > _MAX_ENDED:
            self._ended.popitem(last=False)

    def step(self, is_idle: bool) -> dict:
        """Bring what is wanted most, within the budgets; {"state": "busy" | "loading" | "nothing" | "brought", "tokens"}."""
        if not is_idle:
            return {"state": "busy", "tokens": 0}
        if self._cache.ongoing_load_back:
            return {"state": "loading", "tokens": 0}
        self._core.settle()
        unused, budget = self._unused_tokens(), self._pool_budget_tokens()
        brought = self._bring_all(self._known_hotspots(), 0, budget - unused)
        # A guess must not keep a hotspot out.
        brought = self._bring_all(self._expected(), brought, budget // 2 - unused)
        if not brought or not start_own_loads(self._cache):
            return {"state": "nothing", "tokens": 0}
        self.num_steps += 1
        self.num_tokens += brought
        return {"state": "brought", "tokens": brought}

    def stats(self) -> dict:
        """For `/radiximp/stats`: tokens brought, and of those used and evicted before a use, as of the last step."""
        return {
            "steps": self.num_steps,
            "tokens": self.num_tokens,
            "used_tokens": self.num_used_tokens,
            "lost_tokens": self.num_lost_tokens,
        }

    # ---- what is wanted ----

    def _known_hotspots(self) -> list[UnifiedTreeNode]:
        """The last nodes of hotspots, best first; they are looked for again only after a request."""
        core = self._core
        if self._hotspots_as_of != core.uses.num_queries:
            self._hotspots_as_of = core.uses.num_queries
            self._hotspots = [found.node for found in core.find_hotspots()[:_MAX_HOTSPOTS]]
        there = core._node_arena
        return [node for node in self._hotspots if there.get(node.id) is node]

    def _expected(self) -> list[UnifiedTreeNode]:
        """The last nodes of ended requests that are on the host and likely to go on soon, likeliest first."""
        core, found = self._core, []
        for node_id, tick in list(self._ended.items()):
            node = core._node_arena.get(node_id)
            if node is None or core.history_of(node).last_use_tick != tick:
                del self._ended[node_id]
            elif node.evicted:
                chance = core.policy.chance_within(core.history_of(node), HORIZON_S)
                if chance >= MIN_CHANCE:
                    found.append((-chance, node_id, node))
        return [node for *_, node in sorted(found, key=lambda entry: entry[:2])]

    # ---- how much fits ----

    def _pool_budget_tokens(self) -> int:
        return int(self._config.load_back_pool_fraction * self._core.pool_tokens)

    def _unused_tokens(self) -> int:
        """Tokens on the device that were brought and wait for their first use."""
        for node_id, (tick, num_tokens) in list(self._unused.items()):
            node = self._core._node_arena.get(node_id)
            if node is not None and self._core.history_of(node).last_use_tick != tick:
                self.num_used_tokens += num_tokens
            elif node is None or node.evicted:
                self.num_lost_tokens += num_tokens
                self._note_lost(node_id)
            else:
                continue
            del self._unused[node_id]
        return sum(num_tokens for _, num_tokens in self._unused.values())

    def _note_lost(self, node_id: int) -> None:
        self._lost_s.pop(node_id, None)
        self._lost_s[node_id] = self._core.clock.now_s()
        if len(self._lost_s) > _MAX_LOST:
            self._lost_s.popitem(last=False)

    def _room_tokens(self, path: list, rank: tuple) -> int:
        """Free device tokens, and those of the next victim if the policy would rather lose it and it has a copy on the host."""
        cache, core = self._cache, self._core
        on_device = next((node for node in reversed(path) if not node.evicted), core.root_node)
        # The path's own device part must not be what goes.
        lock = cache.inc_lock_ref(on_device.id).to_dec_params()
        try:
            victim = core.evictable_device_leaves.first()
        finally:
            cache.dec_lock_ref(on_device.id, lock)
        free = cache.token_to_kv_pool_allocator.available_size()
        if victim is None or not victim.backuped or core.rank(victim) >= rank:
            return free
        return free + len(victim.key)

    # ---- doing it ----

    def _bring_all(self, nodes: list[UnifiedTreeNode], brought: int, most_tokens: int) -> int:
        """Bring prefixes as far as the step's budget and `most_tokens` go; returns `brought` and what is added to it."""
        most_tokens = min(most_tokens, self._config.load_back_step_tokens)
        for node in nodes:
            if brought + self._core.page_size > most_tokens:
                break
            brought += self._bring(node, most_tokens - brought)
        return brought

    def _bring(self, node: UnifiedTreeNode, most_tokens: int) -> int:
        """Load the missing part of a prefix, its first tokens first; returns the tokens that are on their way."""
        path = self._core.path_to(node)
        missing = [part for part in path if part.evicted]
        if not missing or not all(map(self._can_load, missing)):
            return 0
        rank = min(map(self._core.rank, missing))
        page = self._core.page_size
        num_tokens = min(most_tokens, self._room_tokens(path, rank)) // page * page
        num_missing = sum(len(part.key) for part in missing)
        if num_tokens < min(num_missing, max(_MIN_TOKENS, self._cache.load_back_threshold)):
            return 0
        parts = self._cut(missing, num_tokens)
        if not parts or not self._cache.load_back(parts[-1].id):
            return 0
        for part in parts:
            self._unused[part.id] = self._core.history_of(part).last_use_tick, len(part.key)
        return sum(len(part.key) for part in parts)

    def _can_load(self, node: UnifiedTreeNode) -> bool:
        lost_s = self._lost_s.get(node.id)
        may_try = lost_s is None or self._core.clock.now_s() - lost_s >= _AGAIN_AFTER_S
        # SGLang tracks a copy in flight by the node's id: such a node is neither cut nor loaded from here.
        is_at_rest = node.write_through_pending_id is None and node.load_back_pending_id is None
        return may_try and is_at_rest and node.backuped

    def _cut(self, missing: list, num_tokens: int) -> list:
        """The first of the nodes that hold `num_tokens` together; the last one is cut where they end."""
        parts = []
        for node in missing:
            if len(node.key) > num_tokens:
                if num_tokens:
                    head, _ = self._core._split_node(node.key, node, num_tokens)
                    parts.append(head)
                break
            parts.append(node)
            num_tokens -= len(node.key)
        return parts


def consumer_of(index: int, cache: UnifiedRadixCache) -> int:
    """The load that a prefill batch waits for, layer by layer: its own, else one of ours that is not acknowledged yet.

    index: SGLang's answer, -1 for a batch that loads nothing. Loads run in one stream, so waiting for the newest is
    waiting for all.
    """
    if index != -1 or not cache.cache_controller.ack_load_queue:
        return index
    return cache.cache_controller.layer_done_counter.producer_index
