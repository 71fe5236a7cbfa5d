"""What people and other subsystems ask of an annotated tree: pin, describe, statistics.

A question (`describe`, `dry_run`, `get_importance`, `stats`) changes nothing, not even an order.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Iterator

from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components import BASE_COMPONENT_TYPE

from radiximp import __version__
from radiximp.policy.history import Pin

logger = logging.getLogger(__name__)


class TreeAnnotations:
    """Mixin of `ImportanceTreeCore`; O(path) per call unless said otherwise."""

    def _walk(self, key: RadixKey) -> Iterator[tuple[object, int, int]]:
        """(node, start, matched tokens) along `key`, through nodes with KV on device or host; reads only."""
        key, _ = key.maybe_to_bigram_view(self.is_eagle)
        key = key.page_aligned(self.page_size)
        node, start = self.root_node, 0
        while len(key) > 0:
            node = node.children.get(key.child_key(self.page_size))
            if node is None or (node.evicted and not node.backuped):
                return
            matched = node.key.match(key, page_size=self.page_size)
            if matched == 0:
                return
            yield node, start, matched
            if matched < len(node.key):
                return
            start += matched
            key = key[matched:]

    # ---- pins: soft, within a budget; a pinned leaf goes after all others, never wedges the pool ----

    @property
    def pin_budget_tokens(self) -> int:
        """Most tokens that pins may protect at once."""
        return int(self.config.pin_fraction * self._pool_tokens)

    def pin(self, key: RadixKey, ttl_s: float | None = None) -> int:
        """Protect the prefix of `key` that is on the device; returns the tokens of it now pinned.

        Less than asked if the prefix is shorter or the budget ends first. None never expires.
        """
        if ttl_s is not None and not (ttl_s > 0 and math.isfinite(ttl_s)):
            raise ValueError(f"ttl_s: expected a positive number of seconds or None, got {ttl_s!r}")
        self.settle()
        return self.place_pin(key, Pin(math.inf if ttl_s is None else self.clock.now_s() + ttl_s))

    def place_pin(self, key: RadixKey, pin: Pin) -> int:
        """Put `pin` on the device prefix of `key`, as far as the budget goes; returns its tokens."""
        pinned = 0
        for node, _, matched in list(self._walk(key)):
            if node.evicted:
                break
            if not self.history_of(node).pins:
                room = self.pin_budget_tokens - self.pinned_tokens
                matched = min(matched, room - room % self.page_size)
            if matched == 0:
                break
            is_whole = matched == len(node.key)
            if not is_whole:
                if node.write_through_pending_id is not None or self.is_host_memory_buffer_only:
                    break  # the cache tracks this node's copy by id: it must not be cut from here
                node, _ = self._split_node(node.key, node, matched)
            self._pin_node(node, pin)
            pinned += matched
            if not is_whole:
                break
        return pinned

    def lift_pin(self, key: RadixKey, pin: Pin) -> None:
        """Take `pin` off wherever it still lies along `key`."""
        for node, _, matched in self._walk(key):
            pins = self.history_of(node).pins
            if matched == len(node.key) and pin in pins:
                self._set_pins(node, tuple(other for other in pins if other is not pin))

    def unpinned_device_tokens(self, key: RadixKey) -> int:
        """Tokens along `key` on the device that no pin lies on."""
        free = 0
        for node, _, matched in self._walk(key):
            if node.evicted:
                break
            free += 0 if self.history_of(node).pins else matched
        return free

    def note_pins_used(self, nodes: list, now_s: float) -> None:
        """A request used the path `nodes`: pins that lie on nothing beyond it were used whole."""
        deepest = {pin: node for node in nodes for pin in self.history_of(node).pins}
        for pin, node in deepest.items():
            if not any(pin in self.history_of(child).pins for child in node.children.values()):
                pin.note_use(now_s)

    def tokens_under(self, key: RadixKey, pin: Pin) -> int:
        """Tokens along `key` that `pin` lies on now: less than were placed if something was evicted."""
        return sum(matched for node, _, matched in self._walk(key) if pin in self.history_of(node).pins)

    def _pin_node(self, node, pin: Pin) -> None:
        history = self.history_of(node)
        if not history.pins:
            self.pinned_tokens += len(node.key)
        history.pins = (*history.pins, pin)
        self._await_expiry(node)
        self.touch_leaf(node)

    def _await_expiry(self, node) -> None:
        """Have `settle` look at the node when its next pin expires; pushes only what comes sooner."""
        expires_s = min((pin.expires_s for pin in self.history_of(node).pins), default=math.inf)
        if expires_s < self._awaited_expiry.get(node.id, math.inf):
            self._awaited_expiry[node.id] = expires_s
            heapq.heappush(self._pin_expiries, (expires_s, node.id))

    def unpin(self, key: RadixKey) -> int:
        """Take the newest pin off each node along `key`; returns the tokens that had one, 0 if not pinned."""
        self.settle()
        unpinned = 0
        for node, _, matched in self._walk(key):
            if matched < len(node.key):
                break
            pins = self.history_of(node).pins
            if pins:
                unpinned += matched
                self._set_pins(node, pins[:-1])
        return unpinned

    def _set_pins(self, node, pins: tuple[Pin, ...]) -> None:
        self.history_of(node).pins = pins
        if not pins:
            self.pinned_tokens -= len(node.key)
            self.touch_leaf(node)

    def settle(self) -> None:
        """Bring the order up to now: record waiting uses, drop the pins whose time has passed."""
        self.uses.settle()
        now_s = self.clock.now_s()
        self.policy.advance(now_s)
        for notice in self.policy.take_notices():
            logger.warning("radiximp: %s", notice)
        if self.law_file is not None:
            self.law_file.save_at(now_s)
        while self._pin_expiries and self._pin_expiries[0][0] <= now_s:
            expires_s, node_id = heapq.heappop(self._pin_expiries)
            if self._awaited_expiry.get(node_id) != expires_s:
                continue  # a sooner one was looked at before
            del self._awaited_expiry[node_id]
            node = self._node_arena.get(node_id)
            if node is not None and self.history_of(node).pins:
                self._set_pins(node, tuple(p for p in self.history_of(node).pins if p.expires_s > now_s))
                self._await_expiry(node)

    # ---- questions ----

    def describe(self, key: RadixKey) -> list[dict]:
        """The nodes along `key`: tokens, tier, importance, queries, sessions, pins."""
        self.settle()
        return [self._node_info(node, matched) for node, _, matched in self._walk(key)]

    def hotspots(self, limit: int = 10) -> list[dict]:
        """Nodes used by the most requests, ties to the larger density; O(nodes)."""
        self.settle()
        nodes = [node for node in self._node_arena.values() if node is not self.root_node]
        nodes.sort(
            key=lambda node: (-self.history_of(node).num_queries, -self.history_of(node).density, node.id)
        )
        return [self._node_info(node, len(node.key)) for node in nodes[:limit]]

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
            "evictions": {tier: self.num_evictions[tier] for tier in ("device", "host")},
            "evicted_tokens": {tier: self.num_evicted_tokens[tier] for tier in ("device", "host")},
            "ghosts": len(self.ghosts),
            "ghost_hits": self.ghosts.num_hits,
            "nodes": len(self._node_arena) - 1,
            "leaves": {"device": len(self.evictable_device_leaves), "host": len(self.evictable_host_leaves)},
            "importance": self.observation_stats(),
            **self.policy.stats(),
            "pinned_tokens": self.pinned_tokens,
            "pin_budget_tokens": self.pin_budget_tokens,
            "clock_s": self.clock.now_s(),
            "victim_digest": self.victim_digest,
            "sanity_checks": self.num_sanity_checks,
        }

    def _num_placed(self) -> int:
        return self.evictable_device_leaves.num_key_calls + self.evictable_host_leaves.num_key_calls

    def sanity_check(self, *args, **kwargs):
        """The base class's check, then that index, pins and budget agree with the nodes; O(n log n)."""
        self.settle()
        super().sanity_check(*args, **kwargs)
        self.num_sanity_checks += 1
        self.evictable_device_leaves._check()
        self.evictable_host_leaves._check()
        pinned = sum(len(n.key) for n in self._node_arena.values() if self.history_of(n).pins)
        assert pinned == self.pinned_tokens, f"pinned {pinned} tokens, counted {self.pinned_tokens}"
        assert pinned <= max(self.pin_budget_tokens, 0), (
            f"pinned {pinned} tokens, budget {self.pin_budget_tokens}"
        )
        for node in self._node_arena.values():
            assert self.history_of(node).weight > 0, (
                f"node {node.id} has weight {self.history_of(node).weight}"
            )
