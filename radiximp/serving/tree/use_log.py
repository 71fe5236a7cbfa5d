"""Uses of tree nodes, written down as they happen and recorded when somebody needs the order.

An insert or a lookup pays one append. One request is one use: a node counts once for it, however many
prefill chunks, retries and re-matches the request took.
"""

from __future__ import annotations

import contextlib
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from radiximp.policy.history import NodeHistory
from radiximp.policy.prefix_digest import extended, namespace_hasher, prefix_hasher
from radiximp.policy.uses import record_use
from radiximp.serving.requests import is_warm

if TYPE_CHECKING:
    from hashlib import blake2b

    from sglang.srt.mem_cache.radix_cache import RadixKey
    from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeNode

    from radiximp.serving.tree.core import ImportanceTreeCore

# Bounds the work that waits; the first eviction after a quiet hour costs as much as any other.
_MAX_WAITING = 256
# Tenants whose requests are counted; the one longest unused is forgotten for a new one.
_MAX_NAMESPACES = 4096


class UseLog:
    """Owned by a tree core. note: O(1); settle: O(path) per waiting use."""

    def __init__(self, core: ImportanceTreeCore) -> None:
        self._core = core
        self._waiting: list[tuple] = []
        self._open_lookup = 0
        self._request = None
        self.num_queries = 0
        self.num_warm_requests = 0
        self.tick = 0
        # Requests of each namespace and the newest of them, the namespace used last at the end.
        self.namespaces: OrderedDict[tuple, tuple[int, int]] = OrderedDict()

    def clear(self) -> None:
        """Forget what waits (the tree is gone)."""
        self._waiting.clear()
        self._open_lookup = 0
        self.namespaces.clear()

    def note_lookup(self, node: UnifiedTreeNode) -> None:
        """A lookup on behalf of no request: it starts an anonymous one, which the next insert may complete."""
        self._open_lookup = self.num_queries = query = self.num_queries + 1
        self._wait((node, query, self._core.clock.step(), 0, None, ("", 0)))

    @contextlib.contextmanager
    def on_behalf_of(self, request) -> Iterator[None]:
        """Inserts inside the block belong to `request` (an SGLang `Req`), also after it was retracted."""
        self._request = request
        try:
            yield
        finally:
            self._request = None

    def _query_of_request(self) -> int:
        # Kept on the request: what it counted before a retraction may meanwhile be a ghost.
        query = getattr(self._request, "radiximp_query", None)
        if query is None:
            self.num_queries = query = self._request.radiximp_query = self.num_queries + 1
            self._core.clock.step()
        return query

    def _end_of_request(self) -> tuple[str, int] | None:
        """How the request ended, once: SGLang inserts a finished one twice, whole and up to its prompt's end."""
        if getattr(self._request, "radiximp_ended", False):
            return None
        end = self._core.finishes.end_of(self._request)
        self._request.radiximp_ended = end is not None
        return end

    def note_insert(self, node, end_tokens: int, counted_tokens: int, session_id: str | None) -> None:
        """An insert of a prefix of `end_tokens` that ended on `node`; the same request inserted
        the first `counted_tokens` before."""
        end: tuple[str, int] | None = ("", 0)
        if self._request is not None and is_warm(self._request):
            self._note_warm(node)
            return
        if self._request is not None:
            end = self._end_of_request()
            # A retracted request starts over and SGLang's own count with it; ours stays on the request.
            counted_tokens = max(counted_tokens, getattr(self._request, "radiximp_counted_tokens", 0))
            self._request.radiximp_counted_tokens = max(counted_tokens, end_tokens)
            query, now_s = self._query_of_request(), self._core.clock.now_s()
        elif self._open_lookup:
            query, now_s = self._open_lookup, self._core.clock.now_s()
            self._open_lookup = 0
        else:
            self.num_queries = query = self.num_queries + 1
            now_s = self._core.clock.step()
        self._wait((node, query, now_s, counted_tokens, session_id, end))

    def _note_warm(self, node) -> None:
        # No query: it is counted by nobody but here.
        self.num_warm_requests += self._end_of_request() is not None
        self._wait((node, None, self._core.clock.now_s(), 0, None, None))

    def _wait(self, use: tuple) -> None:
        self._waiting.append(use)
        if len(self._waiting) > _MAX_WAITING:
            self.settle()

    def settle(self) -> None:
        """Record all that waits, in the order it happened."""
        self._core.note_held()
        if not self._waiting:
            return
        with self._core.tally.timing("settle"):
            for use in self._waiting:
                self._record(*use)
            self._waiting.clear()

    @staticmethod
    def session_hash(session_id: str) -> int:
        """A number that is the same on every rank."""
        return zlib.crc32(session_id.encode())

    def _record(self, node, query: int | None, now_s: float, counted_tokens: int, session_id, end) -> None:
        core = self._core
        nodes = core.path_to(node)
        path = [(core.history_of(node), len(node.key)) for node in nodes]
        if query is None:
            core.policy.record_warm(path, now_s, self.tick)
        else:
            self._record_use(nodes, path, query, now_s, counted_tokens, session_id, end)
        for node in nodes:
            core.touch_leaf(node)

    def _record_use(
        self, nodes, path, query: int, now_s: float, counted_tokens: int, session_id, end
    ) -> None:
        core = self._core
        self._note_namespace(nodes, query)
        for (history, _), following in zip(path, nodes[1:], strict=False):
            history.add_branch(branch_hash(following.key, core.page_size))
        session_hash = None if session_id is None else self.session_hash(session_id)
        use = (query, now_s, counted_tokens, session_hash, end, self.tick)
        self.tick = record_use(core.policy, path, *use, on_return=core.tally.count_return)
        if core.pinned_tokens:
            core.note_pins_used(nodes, now_s)
        for history, _ in path:
            history.goes_first = False
        if end is not None and nodes and core.load_back is not None:
            core.load_back.note_end(nodes[-1])

    def _note_namespace(self, nodes: list, query: int) -> None:
        """Count a request of a namespace once, however many inserts it took."""
        if not nodes:
            return
        namespace = namespace_of(nodes[0])
        num_queries, last_query = self.namespaces.pop(namespace, (0, 0))
        self.namespaces[namespace] = (num_queries + (query > last_query), max(query, last_query))
        if len(self.namespaces) > _MAX_NAMESPACES:
            self.namespaces.popitem(last=False)


def namespace_of(node: UnifiedTreeNode) -> tuple[str | None, str | None]:
    """(extra_key with its LoRA, cache_salt): nothing is ever counted across two of them."""
    return node.key.extra_key, node.key.cache_salt


def branch_hash(key: RadixKey, page_size: int) -> int:
    """A number of a node's first page, which sets it apart from its siblings; the same on every rank."""
    return zlib.crc32(key.token_ids[:page_size].tobytes())


def _hasher(parent: UnifiedTreeNode, key: RadixKey) -> blake2b:
    """Hasher of the prefix that ends with `parent`, in the namespace of `key`."""
    return prefix_hasher(
        parent, lambda node: token_ids_of(node.key), lambda: namespace_hasher(key.extra_key, key.cache_salt)
    )


def leave_ghost(core: ImportanceTreeCore, node: UnifiedTreeNode) -> None:
    """Remember the history of a node that leaves the tree."""
    if core.ghosts.capacity == 0:
        return
    token_ids = token_ids_of(node.key)
    first_page = extended(_hasher(node.parent, node.key), token_ids[: core.page_size])
    core.ghosts.put(first_page.digest(), token_ids, core.history_of(node))


def take_ghosts(
    core: ImportanceTreeCore, parent: UnifiedTreeNode, key: RadixKey
) -> list[tuple[int, NodeHistory]]:
    """(end, history) of the pieces of `key`, which continues `parent`, that were in the tree before."""
    if not core.ghosts.may_know(key.token_ids[0]):
        return []
    return core.ghosts.take(_hasher(parent, key), token_ids_of(key), core.page_size)


def token_ids_of(key: RadixKey) -> np.ndarray:
    """[num_tokens] int64 view of a key's tokens, without the extra one of a bigram key."""
    return np.frombuffer(key.raw_token_ids(), dtype=np.int64)[: len(key)]
