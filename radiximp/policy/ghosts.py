"""A bounded memory of evicted nodes, so that a prompt that returns has its history back.

Keys are content digests that include the tenant's namespace: tenants never share a ghost.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from hashlib import blake2b

from radiximp.policy.history import NodeHistory
from radiximp.policy.prefix_digest import extended

_MIN_CAPACITY = 256


class GhostTable:
    """Evicted segments by the digest of their first page; oldest forgotten first.

    A segment is a node's token range [start, end). `put` is O(1).
    Capacity is `factor` x the most nodes ever held (`note_nodes`), at least 256.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._max_nodes = 0
        self._ghosts: OrderedDict[bytes, tuple[int, bytes, NodeHistory]] = OrderedDict()
        self.num_hits = 0

    def __len__(self) -> int:
        return len(self._ghosts)

    @property
    def capacity(self) -> int:
        """How many segments are kept; 0 switches the table off."""
        return int(self._factor * max(self._max_nodes, _MIN_CAPACITY))

    def note_nodes(self, num_nodes: int) -> None:
        """Tell the table how many nodes the tree holds now."""
        if num_nodes > self._max_nodes:
            self._max_nodes = num_nodes

    def put(self, first_page: bytes, num_tokens: int, end: bytes, history: NodeHistory) -> None:
        """Remember a segment: digests of the prefix up to its first page and up to its end."""
        if self.capacity == 0:
            return
        self._ghosts[first_page] = (num_tokens, end, history)
        self._ghosts.move_to_end(first_page)
        while len(self._ghosts) > self.capacity:
            self._ghosts.popitem(last=False)

    def take(self, start: blake2b, token_ids: array, page_tokens: int) -> list[tuple[int, NodeHistory]]:
        """(end, history) of the remembered segments that follow each other from the start of a range.

        start: hasher of the prefix before the range; token_ids: the range. `end` counts tokens into it.
        Removes what it returns. O(tokens followed).
        """
        found: list[tuple[int, NodeHistory]] = []
        position = 0
        while position + page_tokens <= len(token_ids):
            first_page = extended(start, token_ids[position : position + page_tokens])
            ghost = self._ghosts.get(first_page.digest())
            if ghost is None or position + ghost[0] > len(token_ids):
                break
            num_tokens, end_digest, history = ghost
            start = extended(first_page, token_ids[position + page_tokens : position + num_tokens])
            if start.digest() != end_digest:
                break
            del self._ghosts[first_page.digest()]
            position += num_tokens
            found.append((position, history))
        if found:
            self.num_hits += 1
        return found

    def clear(self) -> None:
        """Forget everything (a flush or a weight update)."""
        self._ghosts.clear()
