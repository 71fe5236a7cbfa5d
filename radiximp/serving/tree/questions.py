"""What people and other subsystems ask of an annotated tree. A question changes nothing, not even an order."""

from __future__ import annotations

import heapq

from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components import BASE_COMPONENT_TYPE

from radiximp import __version__
from radiximp.prewarm.hotspots import Hotspot, find_hotspots
from radiximp.prewarm.hotspots import rank as rank_of_hotspot
from radiximp.serving.tree.namespaces import parted
from radiximp.serving.tree.use_log import namespace_of


class TreeQuestions:
    """Mixin of `ImportanceTreeCore`; O(path) per call unless said otherwise."""

    # When they were last looked for: looking walks the tree, and a metric must not.
    num_hotspots = 0

    def describe(self, key: RadixKey) -> list[dict]:
        """The nodes along `key`: tokens, tier, importance, queries, sessions, pins."""
        self.settle()
        return [self._node_info(node, matched) for node, _, matched in self._walk(key)]

    def find_hotspots(self) -> list[Hotspot]:
        """Hotspots of all tenants with requests enough to tell, each from its own requests alone; best first."""
        self.settle()
        found: list[Hotspot] = []
        tenants: dict[tuple, list] = {}
        for node in self.root_node.children.values():
            tenants.setdefault(namespace_of(node), []).append(node)
        for namespace, nodes in tenants.items():
            if self.uses.namespaces.get(namespace, (0, 0))[0] >= self.config.hotspot_queries:
                half_life_s = self.config.law_half_life_s
                found += find_hotspots(nodes, self.history_of, self.clock.now_s(), half_life_s)
        found.sort(key=rank_of_hotspot)
        self.num_hotspots = len(found)
        return found

    def hotspots(self, limit: int = 10, preview_tokens: int = 0) -> list[dict]:
        """The prefixes that are worth most to have ready, as `GET /radiximp/hotspots` lists them.

        preview_tokens: of each hotspot's own part the first so many, as "preview_ids".
        """
        found = self.find_hotspots()[:limit]
        rows = [self._hotspot_info(hotspot) for hotspot in found]
        if preview_tokens:
            for row, hotspot in zip(rows, found, strict=True):
                begin = hotspot.num_tokens - hotspot.own_tokens
                row["preview_ids"] = self.prefix_of(hotspot.node)[begin : begin + preview_tokens]
        return rows

    def hotspot_prompts(self, limit: int, max_tokens: int) -> list[dict]:
        """Hotspots with their tokens and namespace, as many as `max_tokens` hold: enough to prefill them elsewhere."""
        found, num_tokens = [], 0
        for hotspot in self.find_hotspots()[:limit]:
            num_tokens += hotspot.num_tokens
            if num_tokens > max_tokens:
                break
            namespace, cache_salt = namespace_of(hotspot.node)
            extra_key, lora_id = parted(namespace)
            found.append(
                {
                    "input_ids": self.prefix_of(hotspot.node),
                    "extra_key": extra_key,
                    "cache_salt": cache_salt,
                    "lora_id": lora_id,
                    "score": hotspot.score,
                    "queries": hotspot.num_queries,
                    "sessions": hotspot.num_sessions,
                }
            )
        return found

    def _hotspot_info(self, hotspot: Hotspot) -> dict:
        path = self.path_to(hotspot.node)
        on_device = sum(len(node.key) for node in path if not node.evicted)
        return {
            **self._node_info(hotspot.node, hotspot.num_tokens),
            "tokens_on_device": on_device,
            "tokens_on_host": sum(len(node.key) for node in path if node.backuped),
            "importance": hotspot.importance,
            "sessions": hotspot.num_sessions,
            "score": hotspot.score,
        }

    def dry_run(self, num_tokens: int) -> list[dict]:
        """The device victims that an eviction of `num_tokens` would take now, in order; O(leaves log leaves)."""
        self.settle()
        freed, victims = 0, []
        gone: set = set()
        heap = [(*self.rank(leaf), leaf.id, leaf) for leaf in self.evictable_device_leaves]
        heapq.heapify(heap)
        while heap and freed < num_tokens:
            leaf = heapq.heappop(heap)[-1]
            victims.append(self._node_info(leaf, len(leaf.key)))
            freed += len(leaf.key)
            gone.add(leaf)
            parent = leaf.parent
            if self._would_be_leaf(parent, gone):
                heapq.heappush(heap, (*self.rank(parent), parent.id, parent))
        return victims

    def _would_be_leaf(self, node, gone: set) -> bool:
        if node is self.root_node or node.evicted or any(data.lock_ref for data in node.component_data):
            return False
        return all(child in gone or child.evicted for child in node.children.values())

    def _node_info(self, node, num_tokens: int) -> dict:
        history = self.history_of(node)
        return {
            "node": node.id,
            "tokens": num_tokens,
            "is_on_device": node.component_data[BASE_COMPONENT_TYPE].value is not None,
            "is_on_host": node.backuped,
            "importance": history.density,
            "queries": history.num_queries,
            "sessions": history.num_sessions,
            "age_s": self.clock.now_s() - history.last_use_s,
            "is_pinned": bool(history.pins),
        }

    def stats(self) -> dict:
        """Counters and sizes for `/radiximp/stats`; plain JSON types, read-only."""
        self.settle()
        return {
            "version": __version__,
            "policy": self.policy.name,
            "tree_core": type(self).__name__,
            "config": {name: getattr(self.config, name) for name in self.config.__dataclass_fields__},
            "scorer_calls": self.eviction_strategy.num_calls + self._num_placed(),
            "uses": self.uses.tick,
            "warm_requests": self.uses.num_warm_requests,
            "hints": self.hints.stats(),
            "evictions": {tier: self.num_evictions[tier] for tier in ("device", "host")},
            "evicted_tokens": {tier: self.num_evicted_tokens[tier] for tier in ("device", "host")},
            "ghosts": len(self.ghosts),
            "ghost_hits": self.ghosts.num_hits,
            "nodes": self.num_nodes,
            "leaves": {"device": len(self.evictable_device_leaves), "host": len(self.evictable_host_leaves)},
            "importance": self.observation_stats(),
            **self.policy.stats(),
            "pinned_tokens": self.pinned_tokens,
            "pin_budget_tokens": self.pin_budget_tokens,
            "load_back": None if self.load_back is None else self.load_back.stats(),
            "clock_s": self.clock.now_s(),
            "victim_digest": self.victim_digest,
            "sanity_checks": self.num_sanity_checks,
            **self.counts(),
        }

    def _num_placed(self) -> int:
        return self.evictable_device_leaves.num_key_calls + self.evictable_host_leaves.num_key_calls
