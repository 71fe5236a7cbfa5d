"""How a device eviction goes from victim to victim, and how much of a long leaf goes.

The rules that the server's tree core and the replay's tree share; which leaf is first is the policy's.
"""

from __future__ import annotations

from typing import Any


def tail_tokens(leaf_tokens: int, wanted_tokens: int, trim_tokens: int, page_tokens: int) -> int:
    """How many of a leaf's last tokens go: what is wanted or a little more, in whole pages; all, if `trim_tokens` is 0.

    A decode batch is short of a few tokens at every step. A cut copies the leaf's slots, so each one
    takes a sixteenth of the leaf at least: a leaf then goes in O(log n) cuts.
    """
    if not trim_tokens:
        return leaf_tokens
    wanted_tokens = max(wanted_tokens, trim_tokens, leaf_tokens // 16)
    return min(leaf_tokens, -(-wanted_tokens // page_tokens) * page_tokens)


class VictimWalk:
    """One device eviction over an index of leaves. It chooses only: the tree cuts and frees."""

    def __init__(self, leaves: Any, request_tokens: int, shortfall_tokens: int) -> None:
        """request_tokens: what the walk may free at most; shortfall_tokens: what is really short, 0 if not known."""
        self._leaves = leaves
        self._request_tokens = request_tokens
        self._shortfall_tokens = min(request_tokens, shortfall_tokens or request_tokens)
        self._overrun_tokens = 1
        self._last: Any = None
        # Victims that the caller could not free (a failed write-back) stay leaves; each is offered once.
        self._refused: set = set()

    def next(self, freed_tokens: int) -> tuple[Any, int] | None:
        """(the next victim, the tokens wanted of it), None when enough was freed or no leaf is left."""
        last, self._last = self._last, None
        if last is not None and last in self._leaves:
            self._refused.add(last)
        if freed_tokens >= self._request_tokens:
            return None
        victim = self._leaves.first(skip=self._refused)
        if victim is None:
            return None
        wanted_tokens = self._shortfall_tokens - freed_tokens
        if wanted_tokens <= 0:
            # The allocator hides some headroom (page rounding, a reserve): go on in growing steps.
            wanted_tokens = self._overrun_tokens
            self._overrun_tokens *= 2
        self._last = victim
        return victim, wanted_tokens
