"""Uses of tree nodes, written down as they happen and recorded when somebody needs the order.

An insert or a lookup pays one append. One request is one use: a node counts once for it, however many
prefill chunks, retries and re-matches the request took.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from radiximp.policy.history import NodeHistory
from radiximp.policy.prefix_digest import extended, namespace_hasher

if TYPE_CHECKING:
    from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeNode

    from radiximp.serving.tree_core import ImportanceTreeCore

# Bounds the work that waits; the first eviction after a quiet hour costs as much as any other.
_MAX_WAITING = 256


class UseLog:
    """Owned by a tree core. note: O(1); settle: O(path) per waiting use."""

    def __init__(self, core: ImportanceTreeCore) -> None:
        self._core = core
        self._waiting: list[tuple] = []
        self._open_lookup = 0
        self._request = None
        self.num_queries = 0
        self.tick = 0

    def clear(self) -> None:
        """Forget what waits (the tree is gone)."""
        self._waiting.clear()
        self._open_lookup = 0

    def note_lookup(self, node: UnifiedTreeNode) -> None:
        """A lookup on behalf of no request: it starts an anonymous one, which the next insert may complete."""
        self._open_lookup = self.num_queries = query = self.num_queries + 1
        self._waiting.append((node, query, self._core.clock.step(), 0, None, False))
        if len(self._waiting) > _MAX_WAITING:
            self.settle()

    @contextlib.contextmanager
    def on_behalf_of(self, request) -> Iterator[None]:
        """Inserts inside the block belong to `request` (an SGLang `Req`), also after it was retracted."""
        self._request = request
        try:
            yield
        finally:
            self._request = None

    def note_insert(
        self, node, end_tokens: int, counted_tokens: int, session_id: str | None, is_new_leaf: bool
    ) -> None:
        """An insert of a prefix of `end_tokens` that ended on `node`; the same request inserted
        the first `counted_tokens` before."""
        if self._request is not None:
            # A retracted request starts over and SGLang's own count with it; ours stays on the request.
            counted_tokens = max(counted_tokens, getattr(self._request, "radiximp_counted_tokens", 0))
            self._request.radiximp_counted_tokens = max(counted_tokens, end_tokens)
        if self._open_lookup:
            query, now_s = self._open_lookup, self._core.clock.now_s()
            self._open_lookup = 0
        else:
            self.num_queries = query = self.num_queries + 1
            now_s = self._core.clock.step()
        self._waiting.append((node, query, now_s, counted_tokens, session_id, is_new_leaf))
        if len(self._waiting) > _MAX_WAITING:
            self.settle()

    def settle(self) -> None:
        """Record all that waits, in the order it happened."""
        for use in self._waiting:
            self._record(*use)
        self._waiting.clear()

    def _record(
        self, node, query: int, now_s: float, counted_tokens: int, session_id, is_new_leaf: bool
    ) -> None:
        core = self._core
        if is_new_leaf:
            core.ghosts.note_nodes(len(core._node_arena))
            take_ghost(core, node)
        path, end = [], 0
        while node is not core.root_node:
            path.append(node)
            node = node.parent
        for node in reversed(path):
            end += len(node.key)
            if end <= counted_tokens:
                continue
            history = core.history_of(node)
            if history.last_query == query:
                continue
            history.last_query = query
            self.tick += 1
            core.policy.record_use(history, now_s, self.tick)
            if session_id is not None:
                history.add_session(zlib.crc32(session_id.encode()))
            core.touch_leaf(node)


def prefix_hasher(core: ImportanceTreeCore, node: UnifiedTreeNode):
    """Hasher of the prefix that `node` continues, in its namespace; kept on the ancestors it passes."""
    chain = []
    parent = node.parent
    while parent is not core.root_node and getattr(parent, "prefix_hasher", None) is None:
        chain.append(parent)
        parent = parent.parent
    if parent is core.root_node:
        hasher = namespace_hasher(node.key.extra_key, node.key.cache_salt)
    else:
        hasher = parent.prefix_hasher
    for ancestor in reversed(chain):
        hasher = extended(hasher, ancestor.key.raw_token_ids()[: len(ancestor.key)])
        ancestor.prefix_hasher = hasher
    return hasher


def leave_ghost(core: ImportanceTreeCore, node: UnifiedTreeNode) -> None:
    """Remember the history of a node that leaves the tree."""
    if core.ghosts.capacity == 0:
        return
    start, token_ids, num_tokens = prefix_hasher(core, node), node.key.raw_token_ids(), len(node.key)
    core.ghosts.put(
        extended(start, token_ids[: core.page_size]).digest(),
        num_tokens,
        extended(start, token_ids[:num_tokens]).digest(),
        core.history_of(node),
    )


def take_ghost(core: ImportanceTreeCore, node: UnifiedTreeNode) -> None:
    """Give a new leaf the history its content had when it was last in the tree."""
    if not len(core.ghosts):
        return
    start, token_ids = prefix_hasher(core, node), node.key.raw_token_ids()
    ghost: NodeHistory | None = core.ghosts.take(
        len(node.key), core.page_size, lambda n: extended(start, token_ids[:n]).digest()
    )
    if ghost is not None:
        history = core.history_of(node)
        history.copy_uses(ghost)
        history.importance = ghost.importance
