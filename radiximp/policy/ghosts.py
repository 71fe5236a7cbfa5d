"""A bounded memory of evicted nodes, so that a prompt that returns has its history back.

Keys are content digests that include the tenant's namespace: tenants never share a ghost.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from radiximp.policy.history import NodeHistory

_MIN_CAPACITY = 256


class GhostTable:
    """Evicted segments by the digest of their first page; oldest forgotten first.

    A segment is a node's token range [start, end). `put` and `find` are O(1) per segment.
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

    def take(
        self, num_tokens: int, page_tokens: int, digest_at: Callable[[int], bytes]
    ) -> NodeHistory | None:
        """History of the deepest remembered segment inside a returning range, removing what it follows.

        `digest_at(n)` is the digest of the prefix up to n tokens into the range, 0 < n <= num_tokens.
        """
        found = None
        position = 0
        while position + page_tokens <= num_tokens:
            first_page = digest_at(position + page_tokens)
            ghost = self._ghosts.get(first_page)
            if (
                ghost is None
                or position + ghost[0] > num_tokens
                or digest_at(position + ghost[0]) != ghost[1]
            ):
                break
            del self._ghosts[first_page]
            found = ghost[2]
            position += ghost[0]
        if found is not None:
            self.num_hits += 1
        return found

    def clear(self) -> None:
        """Forget everything (a flush or a weight update)."""
        self._ghosts.clear()
