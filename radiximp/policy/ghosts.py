"""A bounded memory of evicted content, so that a prompt that returns has its history back.

Keys are content digests that include the tenant's namespace: tenants never share a ghost.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from radiximp.policy.history import NodeHistory
from radiximp.policy.prefix_digest import extended, num_agreed

_MIN_SEGMENTS = 256
# A path of more nodes than this is worth making shorter: each costs some microseconds at every lookup.
_MAX_PIECES = 8


@dataclass(slots=True)
class _Segment:
    """Tokens that followed a prefix, [num_tokens] integers, and what was known of them."""

    token_ids: np.ndarray
    history: NodeHistory


class GhostTable:
    """Evicted segments by the digest of the prefix up to their first page; oldest forgotten first.

    A segment may come back in part, or be followed by the next: `take` goes as far as the tokens agree.
    Holds at most `factor` x the most nodes (at least 256) and twice `factor` x the most tokens ever held. `put` is O(tokens).
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._max_nodes = 0
        self._max_tokens = 0
        self._segments: OrderedDict[bytes, _Segment] = OrderedDict()
        self._first_tokens: Counter[int] = Counter()
        self.num_tokens = 0
        self.num_hits = 0

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def capacity(self) -> int:
        """How many segments are kept; 0 switches the table off."""
        return int(self._factor * max(self._max_nodes, _MIN_SEGMENTS))

    def note_held(self, num_nodes: int, num_tokens: int) -> None:
        """Tell the table how many nodes and tokens the tree holds now."""
        self._max_nodes = max(self._max_nodes, num_nodes)
        self._max_tokens = max(self._max_tokens, num_tokens)

    def put(self, first_page: bytes, token_ids: np.ndarray, history: NodeHistory) -> None:
        """Remember a segment; first_page: digest of its prefix and first page; token_ids is kept, not copied."""
        if self.capacity == 0:
            return
        self._pop(first_page)
        history.is_ghost = True
        self._segments[first_page] = _Segment(token_ids, history)
        self._first_tokens[int(token_ids[0])] += 1
        self.num_tokens += len(token_ids)
        max_tokens = 2 * self._factor * self._max_tokens
        while len(self._segments) > self.capacity or self.num_tokens > max(max_tokens, len(token_ids)):
            self._pop(next(iter(self._segments)))

    def may_know(self, first_token: int) -> bool:
        """False if no remembered segment starts with this token: nothing to hash then."""
        return first_token in self._first_tokens

    def _pop(self, first_page: bytes) -> None:
        segment = self._segments.pop(first_page, None)
        if segment is not None:
            first_token = int(segment.token_ids[0])
            self.num_tokens -= len(segment.token_ids)
            self._first_tokens[first_token] -= 1
            if not self._first_tokens[first_token]:
                del self._first_tokens[first_token]

    def take(self, start: blake2b, token_ids: np.ndarray, page_tokens: int) -> list[tuple[int, NodeHistory]]:
        """(end, history) of the remembered pieces that follow each other from the start of a range.

        start: hasher of the prefix before the range; token_ids: [num_tokens] integers, the range. `end` counts
        tokens into it. Removes what it returns; the rest of a segment that agrees in part stays. O(tokens followed).
        """
        found: list[tuple[int, NodeHistory]] = []
        position = 0
        while position + page_tokens <= len(token_ids):
            first_page = extended(start, token_ids[position : position + page_tokens]).digest()
            segment = self._segments.get(first_page)
            if segment is None:
                break
            agreed = num_agreed(segment.token_ids, token_ids[position:])
            agreed -= agreed % page_tokens
            start = extended(start, token_ids[position : position + agreed])
            self._pop(first_page)
            position += agreed
            # A copy: a view would keep what was taken alive too.
            rest = segment.token_ids[agreed:].copy()
            if len(rest) == 0:
                found.append((position, segment.history))
                continue
            found.append((position, segment.history.split(agreed, len(segment.token_ids))))
            self.put(extended(start, rest[:page_tokens]).digest(), rest, segment.history)
            break
        if found:
            self.num_hits += 1
        return found

    def clear(self) -> None:
        """Forget everything (a flush or a weight update)."""
        self._segments.clear()
        self._first_tokens.clear()
        self.num_tokens = 0


def in_pieces(
    found: Sequence[tuple[int, NodeHistory]], num_tokens: int
) -> Iterator[tuple[int, int, NodeHistory | None]]:
    """(start, end, history) of the pieces that new content becomes: those that `take` found, then the rest with None.

    Of many, neighbours that remember the same are one piece: a prompt that left in small tails does not come back in them.
    """
    is_many = len(found) > _MAX_PIECES
    start = 0
    for number, (end, history) in enumerate(found):
        following = found[number + 1][1] if is_many and number + 1 < len(found) else None
        if following is not None and following.remembers_as(history):
            following.held_tokens += history.held_tokens
            continue
        yield start, end, history
        start = end
    if start < num_tokens:
        yield start, num_tokens, None
