"""A bounded memory of evicted nodes, so that a prompt that returns has its history back.

Keys are content digests that include the tenant's namespace: tenants never share a ghost.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
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
        # first page -> (first token, number of tokens, digest of the end, history)
        self._ghosts: OrderedDict[bytes, tuple[int, int, bytes, NodeHistory]] = OrderedDict()
        self._first_tokens: Counter[int] = Counter()
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

    def put(
        self, first_page: bytes, first_token: int, num_tokens: int, end: bytes, history: NodeHistory
    ) -> None:
        """Remember a segment: digests of the prefix up to its first page and up to its end."""
        if self.capacity == 0:
            return
        self._pop(first_page)
        self._ghosts[first_page] = (first_token, num_tokens, end, history)
        self._first_tokens[first_token] += 1
        while len(self._ghosts) > self.capacity:
            self._pop(next(iter(self._ghosts)))

    def may_know(self, first_token: int) -> bool:
        """False if no remembered segment starts with this token: nothing to hash then."""
        return first_token in self._first_tokens

    def _pop(self, first_page: bytes) -> None:
        ghost = self._ghosts.pop(first_page, None)
        if ghost is not None:
            self._first_tokens[ghost[0]] -= 1
            if not self._first_tokens[ghost[0]]:
                del self._first_tokens[ghost[0]]

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
            if ghost is None or position + ghost[1] > len(token_ids):
                break
            _, num_tokens, end_digest, history = ghost
            start = extended(first_page, token_ids[position + page_tokens : position + num_tokens])
            if start.digest() != end_digest:
                break
            self._pop(first_page.digest())
            position += num_tokens
            found.append((position, history))
        if found:
            self.num_hits += 1
        return found

    def clear(self) -> None:
        """Forget everything (a flush or a weight update)."""
        self._ghosts.clear()
        self._first_tokens.clear()
