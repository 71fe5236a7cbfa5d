"""Where a prefix lies in an annotated tree, and its order brought up to now; what the other mixins build on."""

from __future__ import annotations

import heapq
import logging
from array import array
from collections.abc import Iterator

from sglang.srt.mem_cache.radix_cache import RadixKey

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

    def key_in(self, extra_key: str | None, cache_salt: str | None, token_ids) -> RadixKey:
        """The whole pages of a prompt as this tree keys them; extra_key: as a request carries it, LoRA included."""
        ids = array("q", token_ids)
        key = RadixKey(ids, extra_key, is_bigram=self.is_eagle, cache_salt=cache_salt)
        return key.page_aligned(self.page_size)

    def path_to(self, node) -> list:
        """The nodes from below the root to `node`."""
        path = []
        while node is not self.root_node:
            path.append(node)
            node = node.parent
        path.reverse()
        return path

    def prefix_of(self, node) -> list[int]:
        """Token ids of the prefix that ends with `node`."""
        path = self.path_to(node)
        # Of a bigram key each node holds the first token of the next one too.
        ids = [token for part in path for token in part.key.raw_token_ids()[: len(part.key)]]
        return [*ids, path[-1].key.raw_token_ids()[-1]] if self.is_eagle else ids

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
