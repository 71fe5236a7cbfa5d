"""Wishes about prefixes on an annotated tree: pins, which go last, and what was told to go first.

Soft, within a budget: a pinned leaf goes after all others, but it goes; no wish ever wedges the pool.
"""

from __future__ import annotations

import heapq
import math

from sglang.srt.mem_cache.radix_cache import RadixKey

from radiximp.policy.history import Pin


class TreePins:
    """Mixin of `ImportanceTreeCore`; O(path) per call unless said otherwise."""

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
                if not self._can_split(node):
                    break
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

    def let_go_first(self, key: RadixKey, keep_tokens: int = 0) -> int:
        """Have the device copy of `key` go before all else, until it is used again; returns the tokens so marked.

        Only its own tail: what other prompts continue, what is pinned, and the first `keep_tokens` stay as they are.
        """
        self.settle()
        path, marked = list(self._walk(key)), 0
        own = {node.id for node, _, _ in path}
        for node, start, matched in reversed(path):
            history = self.history_of(node)
            others = (child for child in node.children.values() if child.id not in own)
            is_shared = any(not self.history_of(child).goes_first for child in others)
            if (
                matched < len(node.key)
                or history.pins
                or is_shared
                or not self._cut_at(node, keep_tokens - start)
            ):
                break
            if not node.evicted:
                history.goes_first = True
                self.touch_leaf(node)
                marked += len(node.key)
        return marked

    def _cut_at(self, node, num_tokens: int) -> bool:
        """Make the node begin `num_tokens` later, its head a node of its own; False where that cannot be."""
        num_tokens = -(-num_tokens // self.page_size) * self.page_size
        if num_tokens <= 0:
            return True
        if num_tokens >= len(node.key) or not self._can_split(node):
            return False
        self._split_node(node.key, node, num_tokens)
        return True

    def _can_split(self, node) -> bool:
        # The cache tracks this node's copy by id: it must not be cut from here.
        return node.write_through_pending_id is None and not self.is_host_memory_buffer_only
