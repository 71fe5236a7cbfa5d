"""The replay's tree under a server's record: each method is one recorded operation, done by the rules of `ReplayTree`.

The policy, the index, the ghosts, the cut and the walk from victim to victim are the server's own objects. What the
record supplies is what SGLang decided: who was looked up, inserted, locked, copied, and how much was asked for.
"""

from __future__ import annotations

import numpy as np

from radiximp.config import PolicyConfig
from radiximp.policy.history import NodeHistory
from radiximp.policy.prefix_digest import num_agreed
from radiximp.policy.registry import make_policy
from radiximp.policy.uses import record_use
from radiximp.policy.victims import VictimWalk
from radiximp.replay.tree import Node, ReplayTree


class UnknownNode(Exception):
    """The record names a node that this tree does not have."""


class RecordedTree(ReplayTree):
    """Costs as `ReplayTree`. A node's id is its number in the record: nodes are made in the same order."""

    def __init__(self, config: PolicyConfig, page_tokens: int, pool_tokens: int) -> None:
        # lru ranks by access times alone and drops whole leaves: there ghosts change nothing.
        super().__init__(
            make_policy(config),
            page_tokens,
            ghost_factor=0 if config.is_lru else config.ghost_factor,
            trim_tokens=0 if config.is_lru else config.trim_tokens,
        )
        self._config = config
        self.policy.note_capacity(pool_tokens)
        self._pool_pages = pool_tokens / page_tokens
        self._nodes: dict[int, Node] = {}
        self._inserted: tuple[str, np.ndarray] = ("", np.zeros(0, np.int64))
        self._path: list[Node] = []
        self._walk: VictimWalk | None = None
        self._use_tick = 0
        self.now_s = 0.0

    def node(self, number: int) -> Node:
        """The node of that number; raises UnknownNode."""
        try:
            return self._nodes[number]
        except KeyError:
            raise UnknownNode(f"node {number}") from None

    def path_of(self, number: int) -> list[Node]:
        """From the first node under the root to that of the number; the root's is empty."""
        path, node = [], self.node(number) if number else None
        while node is not None and node.parent is not None:
            path.append(node)
            node = node.parent
        return path[::-1]

    def _add(self, parent: Node, page_ids: np.ndarray) -> Node:
        node = super()._add(parent, page_ids)
        node.history = NodeHistory(self.now_s, self._use_tick)
        self._nodes[node.id] = node
        return node

    def _split(self, node: Node, head_pages: int) -> Node:
        head = super()._split(node, head_pages)
        self._nodes[head.id] = head
        return head

    # ---- lookups and inserts ----

    def look_up(self, namespace: str, page_ids: np.ndarray) -> tuple[int, int]:
        """(pages on the device, pages on either tier) that a lookup finds."""
        path = self.match(namespace, page_ids)
        return sum(len(node) for node in path if node.is_on_device), sum(map(len, path))

    def begin_insert(self, namespace: str, page_ids: np.ndarray) -> None:
        """What `walk` and `commit` insert."""
        self._inserted, self._path = (namespace, page_ids), []

    def walk(self, num_pages: int) -> None:
        """Go on along what is known of the prompt, to `num_pages` at most; what is not on the device comes from the request."""
        namespace, page_ids = self._inserted
        position = sum(map(len, self._path))
        node = self._path[-1] if self._path else self.root(namespace)
        while position < num_pages:
            node = node.children.get(int(page_ids[position]))
            if node is None:
                return
            self.tick += 1
            node.last_access_time = self.tick
            agreed = num_agreed(node.page_ids, page_ids[position:])
            if agreed < len(node):
                rest, node = node, self._split(node, agreed)
                self.tick += 2
                node.last_access_time, rest.last_access_time = self.tick - 1, self.tick
                self._touch((rest,))
            self.load_back([node])
            self._touch((node,))
            self._path.append(node)
            position += agreed

    def commit(self) -> int:
        """Finish the insert; returns the pages that were known."""
        namespace, page_ids = self._inserted
        self.walk(len(page_ids))
        known = sum(map(len, self._path))
        self.extend(self._path, namespace, page_ids[known:])
        return known

    def use(self, number: int, query: int, now_s: float, counted_tokens: int, session, end) -> None:
        """A request used the path to a node."""
        path = self.path_of(number)
        self._use_tick = record_use(
            self.policy, self._sizes(path), query, now_s, counted_tokens, session, end, self._use_tick
        )
        self._touch(path)

    def warm(self, number: int, now_s: float) -> None:
        """A pre-warm brought the path to a node."""
        path = self.path_of(number)
        self.policy.record_warm(self._sizes(path), now_s, self._use_tick)
        self._touch(path)

    def observe(self, number: int, density: float, num_tokens: int, is_top: bool) -> None:
        """A query's attention was folded into a node."""
        node = self.node(number)
        node.history.observe(density, num_tokens, is_top, self._config)
        self._touch((node,))

    def note_held(self, num_nodes: int) -> None:
        """The server told its ghost table how much it holds."""
        self.ghosts.note_held(num_nodes, self._pool_pages)

    def _note_held(self) -> None:
        """Nothing by itself: the record says when."""

    def flush(self) -> None:
        """Drop the tree and the ghosts, as a server's flush does."""
        self._roots.clear()
        self._nodes.clear()
        self.ghosts.clear()
        self.policy.restart(self.now_s)
        self.device_leaves = self.policy.new_index(lambda leaf: ())
        self.host_leaves = self.policy.new_index(lambda leaf: ())
        self.num_nodes = self.device_pages = self.host_pages = self._num_ids = 0

    # ---- locks ----

    def lock_host(self, number: int, boundary: int) -> None:
        """Lock one node's host copy; its lock's boundary moves up when the node is cut."""
        node = self.node(number)
        node.host_lock = boundary
        node.num_host_locks += 1
        self._settle(node)

    def unlock_host(self, number: int, boundary: int) -> None:
        """Take the lock off the node and what was cut off above it."""
        for node in reversed(self.path_of(number)):
            node.num_host_locks -= 1
            self._settle(node)
            if node.host_lock == boundary:
                return

    # ---- victims and tiers ----

    def begin_evict(self, request_tokens: int, shortfall_tokens: int) -> None:
        """A device eviction begins."""
        self._walk = VictimWalk(self.device_leaves, request_tokens, shortfall_tokens)

    def next_victim(self, freed_tokens: int) -> tuple[int | None, int]:
        """(number, pages) of the next device victim; (None, 0) if there is none."""
        choice = self._walk.next(freed_tokens)
        if choice is None:
            return None, 0
        victim = self._tail(*choice)
        return victim.id, len(victim)

    def host_victim(self) -> tuple[int | None, int]:
        """The same for the host."""
        victim = self.host_leaves.first()
        return (None, 0) if victim is None else (victim.id, len(victim))

    def demote(self, number: int) -> None:
        """The node's device copy goes, its host copy stays."""
        node = self.node(number)
        node.is_on_device = False
        node.parent.num_device_children -= 1
        self.device_pages -= len(node)
        self._settle(node)
        self._settle(node.parent)

    def remove(self, number: int) -> None:
        """A leaf goes from both tiers; its history stays as a ghost."""
        node = self.node(number)
        if node.is_on_device:
            node.parent.num_device_children -= 1
            self.device_pages -= len(node)
        if node.is_on_host:
            self.host_pages -= len(node)
        self._remove(node)
        del self._nodes[number]
        self._settle(node.parent)

    def set_on_host(self, number: int, is_on_host: bool) -> None:
        """The node was copied to the host, or its copy there was dropped while it stays on the device."""
        node = self.node(number)
        self.host_pages += len(node) * (is_on_host - node.is_on_host)
        node.is_on_host = is_on_host
        self._settle(node)
