"""The prefix tree of the replay: what is on device and host, what is locked, and who goes next.

Works in pages and drives the same policy, index and ghost objects as the server's tree core. It knows
nothing of time but the `now_s` it is told, and nothing of traces.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

import numpy as np

from radiximp.policy.base import Policy
from radiximp.policy.ghosts import GhostTable, in_pieces
from radiximp.policy.history import NodeHistory
from radiximp.policy.prefix_digest import extended, namespace_hasher, num_agreed, prefix_hasher
from radiximp.policy.uses import inherit_gap
from radiximp.policy.victims import tail_tokens

# As in SGLang, `write_through_selective` copies what was used this often.
_SELECTIVE_HIT_COUNT = 2


class Node:
    """A run of pages; on device only if its parent is; on the host only if its parent is, but under write_back."""

    __slots__ = (
        "id", "parent", "children", "page_ids", "history", "prefix_hasher", "last_access_time", "creation_time",
        "hit_count", "priority", "num_locks", "num_host_locks", "host_lock", "is_on_device", "is_on_host",
        "num_device_children",
    )  # fmt: skip

    def __init__(self, node_id: int, parent: Node | None, page_ids: np.ndarray, tick: int) -> None:
        self.id = node_id
        self.parent = parent
        self.children: dict[int, Node] = {}
        self.page_ids = page_ids
        self.history = NodeHistory(0.0, tick)
        self.prefix_hasher: blake2b | None = None
        self.last_access_time = self.creation_time = tick
        self.hit_count = 0
        self.priority = 0
        self.num_locks = self.num_host_locks = 0
        self.host_lock: int | None = None
        self.is_on_device = True
        self.is_on_host = False
        self.num_device_children = 0

    def __len__(self) -> int:
        return len(self.page_ids)


class ReplayTree:
    """match and insert: O(path). evict: O(log leaves) per victim plus the policy's index."""

    def __init__(
        self,
        policy: Policy,
        page_tokens: int,
        host_capacity_pages: int = 0,
        write_policy: str = "write_through",
        ghost_factor: float = 4,
        trim_tokens: int = 1,
    ) -> None:
        self.policy = policy
        self.page_tokens = page_tokens
        self.host_capacity_pages = host_capacity_pages
        self.write_policy = write_policy
        self.trim_tokens = trim_tokens
        self.ghosts = GhostTable(ghost_factor)
        self.device_leaves = policy.new_index(lambda leaf: ())
        self.host_leaves = policy.new_index(lambda leaf: ())
        self.device_pages = self.host_pages = 0
        # write_back: nodes that came to be on both tiers, in this order; looked at again before it is relied on.
        self._duplicates: dict[Node, None] = {}
        self.num_nodes = 0
        self.tick = 0
        self.num_evicted_pages = {"device": 0, "host": 0}
        self.on_victim: Callable[[Node, str], None] = lambda node, tier: None
        self._num_ids = 0
        self._roots: dict[str, Node] = {}

    # ---- structure ----

    def root(self, namespace: str) -> Node:
        """The root of a tenant's tree."""
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Node(0, None, np.zeros(0, np.int64), 0)
            root.prefix_hasher = namespace_hasher(namespace)
            root.num_locks = 1
            root.is_on_host = True
        return root

    def match(self, namespace: str, page_ids: np.ndarray) -> list[Node]:
        """The nodes that hold the longest known prefix, root excluded; cuts the last to fit and touches all."""
        node, path, position = self.root(namespace), [], 0
        while position < len(page_ids):
            child = node.children.get(int(page_ids[position]))
            if child is None:
                break
            agreed = num_agreed(child.page_ids, page_ids[position:])
            if agreed < len(child):
                # As in SGLang, to be cut by a prompt counts as an access of the rest.
                self.tick += 1
                child.last_access_time = self.tick
                child = self._split(child, agreed)
            self.tick += 1
            child.last_access_time = self.tick
            path.append(child)
            position += agreed
            node = child
        self._touch(path)
        return path

    def _split(self, node: Node, head_pages: int) -> Node:
        """Cut a node; returns the new head."""
        self._num_ids += 1
        head = Node(self._num_ids, node.parent, node.page_ids[:head_pages].copy(), node.last_access_time)
        head.history = node.history.split(head_pages, len(node))
        head.creation_time, head.hit_count, head.priority = node.creation_time, node.hit_count, node.priority
        head.is_on_device, head.is_on_host = node.is_on_device, node.is_on_host
        head.num_locks, head.num_host_locks = node.num_locks, node.num_host_locks
        head.host_lock, node.host_lock = node.host_lock, None
        head.num_device_children = int(node.is_on_device)
        node.parent.children[int(head.page_ids[0])] = head
        node.page_ids = node.page_ids[head_pages:].copy()
        node.parent = head
        head.children[int(node.page_ids[0])] = node
        self.num_nodes += 1
        self._note_duplicate(head)
        self._touch((node,))
        return head

    def extend(self, path: list[Node], namespace: str, page_ids: np.ndarray) -> None:
        """Put `page_ids` on the device after the path, in the pieces they were once known in; lengthens the path."""
        if len(page_ids) == 0:
            return
        parent = path[-1] if path else self.root(namespace)
        is_known = self.ghosts.may_know(int(page_ids[0]))
        found = self.ghosts.take(self._hasher(parent), page_ids, 1) if is_known else []
        for start, end, ghost in in_pieces(found, len(page_ids)):
            is_next_turn = parent.parent is not None and not parent.children
            node = self._add(parent, page_ids[start:end])
            if ghost is not None:
                node.history = ghost
            elif is_next_turn:
                node.history.follow()
            path.append(node)
            parent = node
        self._note_held()

    def _note_held(self) -> None:
        self.ghosts.note_held(self.num_nodes, self.device_pages + self.host_pages)

    def _add(self, parent: Node, page_ids: np.ndarray) -> Node:
        self._num_ids += 1
        self.tick += 1
        node = Node(self._num_ids, parent, page_ids.copy(), self.tick)
        parent.children[int(page_ids[0])] = node
        parent.num_device_children += 1
        self.num_nodes += 1
        self.device_pages += len(node)
        self._settle(node)
        self._settle(parent)
        return node

    @staticmethod
    def _hasher(node: Node) -> blake2b:
        return prefix_hasher(node, lambda passed: passed.page_ids, namespace_hasher)

    # ---- uses ----

    def record(self, path: list[Node], now_s: float) -> None:
        """One request uses the path."""
        for node in path:
            inherit_gap(node.parent.history, node.history)
        self.policy.record_uses(self._sizes(path), now_s, self.tick + 1)
        self.tick += len(path)
        # As in SGLang, which counts inserts only to know what to write through.
        if not self._is_write_back:
            for node in path:
                node.hit_count += 1
        self._touch(path)

    def record_end(self, path: list[Node], finish: str, output_tokens: int, now_s: float) -> None:
        """The request that used the path is over."""
        self.policy.record_end(self._sizes(path), finish, output_tokens, now_s)
        self._touch(path)

    def _sizes(self, path: list[Node]) -> list[tuple[NodeHistory, int]]:
        return [(node.history, len(node) * self.page_tokens) for node in path]

    def lock(self, path: list[Node], change: int) -> None:
        """Add (1) or take off (-1) a running request's lock on the path, and on what it was cut into since."""
        node = path[-1] if path else None
        while node is not None and node.parent is not None:
            node.num_locks += change
            self._settle(node)
            node = node.parent

    # ---- tiers ----

    @property
    def _is_write_back(self) -> bool:
        return self.write_policy == "write_back" and self.host_capacity_pages > 0

    def load_back(self, path: list[Node]) -> None:
        """Copy what is on the host only to the device."""
        for node in path:
            if not node.is_on_device:
                node.is_on_device = True
                node.parent.num_device_children += 1
                self.device_pages += len(node)
                self._settle(node)
                self._settle(node.parent)
        # As in SGLang, from the end of the path on.
        for node in reversed(path):
            self._note_duplicate(node)

    def back_up(self, path: list[Node]) -> None:
        """Copy to the host what the write policy says, from the root on, as far as the host has room."""
        if not self.host_capacity_pages or self.write_policy == "write_back":
            return
        for node in path:
            is_due = self.write_policy == "write_through" or node.hit_count >= _SELECTIVE_HIT_COUNT
            if not node.is_on_host and not (is_due and self._copy_to_host(node)):
                return

    def _copy_to_host(self, node: Node) -> bool:
        shortfall = self.host_pages + len(node) - self.host_capacity_pages
        if self._is_write_back:
            shortfall -= self._drop_duplicates(shortfall)
        elif not node.parent.is_on_host and node.parent.parent is not None:
            return False
        if shortfall > 0 and not self._evict_host(shortfall):
            return False
        node.is_on_host = True
        self.host_pages += len(node)
        # As in SGLang, where a node that is about to leave the device is on both tiers for a moment.
        self._note_duplicate(node)
        return True

    def evict(self, num_pages: int, now_s: float) -> int:
        """Free that many device pages, or as many as are not locked; returns how many."""
        self.policy.advance(now_s)
        freed = 0
        while freed < num_pages:
            victim = self.device_leaves.first()
            if victim is None:
                break
            victim = self._tail(victim, (num_pages - freed) * self.page_tokens)
            freed += len(victim)
            self.num_evicted_pages["device"] += len(victim)
            self.on_victim(victim, "device")
            if self._is_write_back and not victim.is_on_host and not self._copy_to_host(victim):
                self._drop_below(victim)
            self._drop_from_device(victim)
        return freed

    def _tail(self, leaf: Node, wanted_tokens: int) -> Node:
        """The leaf, cut to the tail that goes."""
        leaf_tokens = len(leaf) * self.page_tokens
        num_tokens = tail_tokens(leaf_tokens, wanted_tokens, self.trim_tokens, self.page_tokens)
        if num_tokens < leaf_tokens:
            self._split(leaf, len(leaf) - num_tokens // self.page_tokens)
        return leaf

    def _note_duplicate(self, node: Node) -> None:
        if self._is_write_back and node.is_on_device and node.is_on_host:
            self._duplicates.setdefault(node)

    def _drop_duplicates(self, num_pages: int) -> int:
        """Free host pages whose nodes are on the device too, those that the device is about to lose last; how many."""
        freed, gone = 0, []
        for is_sparing in (True, False):
            for node in self._duplicates:
                if freed >= num_pages:
                    break
                if not (node.is_on_device and node.is_on_host):
                    gone.append(node)
                elif not (is_sparing and node in self.device_leaves):
                    node.is_on_host = False
                    self.host_pages -= len(node)
                    freed += len(node)
                    gone.append(node)
        for node in gone:
            self._duplicates.pop(node, None)
        return freed

    def _drop_below(self, node: Node) -> None:
        """Take what is below a device leaf, on the host only, out of the tree: the host has no room for the leaf."""
        below = list(node.children.values())
        for child in below:
            below.extend(child.children.values())
        for child in reversed(below):
            self.num_evicted_pages["host"] += len(child)
            self.on_victim(child, "host")
            self.host_pages -= len(child)
            self._remove(child)

    def _drop_from_device(self, node: Node) -> None:
        node.is_on_device = False
        node.parent.num_device_children -= 1
        self.device_pages -= len(node)
        parent = node.parent
        if node.is_on_host:
            self._settle(node)
        else:
            self._remove(node)
        self._settle(parent)

    def _evict_host(self, num_pages: int) -> bool:
        """Free host pages of what is on the host only, whole leaves; False if that is not enough."""
        freed = 0
        while freed < num_pages:
            victim = self.host_leaves.first()
            if victim is None:
                return False
            freed += len(victim)
            self.num_evicted_pages["host"] += len(victim)
            self.on_victim(victim, "host")
            self.host_pages -= len(victim)
            parent = victim.parent
            self._remove(victim)
            self._settle(parent)
        return True

    def _remove(self, node: Node) -> None:
        """Take a leaf out of the tree; its history stays as a ghost."""
        self.device_leaves.discard(node)
        self.host_leaves.discard(node)
        first_page = extended(self._hasher(node.parent), node.page_ids[:1]).digest()
        self.ghosts.put(first_page, node.page_ids, node.history)
        del node.parent.children[int(node.page_ids[0])]
        self._duplicates.pop(node, None)
        self.num_nodes -= 1

    def _settle(self, node: Node) -> None:
        """Put the node in the index it belongs in, out of the others."""
        is_free = node.num_locks == 0 and node.num_device_children == 0
        if is_free and node.is_on_device:
            self.device_leaves.add(node)
        else:
            self.device_leaves.discard(node)
        if is_free and not (node.is_on_device or node.children or node.num_host_locks):
            self.host_leaves.add(node)
        else:
            self.host_leaves.discard(node)

    def _touch(self, nodes) -> None:
        for node in nodes:
            self.device_leaves.touch(node)
            self.host_leaves.touch(node)

    # ---- the whole of it ----

    def nodes(self) -> list[Node]:
        """Every node but the roots, parents first; O(nodes)."""
        found = [child for root in self._roots.values() for child in root.children.values()]
        for node in found:
            found.extend(node.children.values())
        return found

    def _check(self) -> None:
        """Raise AssertionError unless structure, counts and both indices agree; O(n log n)."""
        nodes = self.nodes()
        assert self.num_nodes == len(nodes)
        assert self.device_pages == sum(len(node) for node in nodes if node.is_on_device)
        assert self.host_pages == sum(len(node) for node in nodes if node.is_on_host)
        assert self.host_pages <= self.host_capacity_pages
        for node in nodes:
            is_under_root = node.parent.parent is None
            assert len(node) and node.parent.children[int(node.page_ids[0])] is node
            assert node.is_on_device or node.is_on_host, f"node {node.id} is nowhere"
            assert not node.is_on_device or node.parent.is_on_device, f"node {node.id} hangs in the air"
            is_above_on_host = node.parent.is_on_host or self._is_write_back
            assert not node.is_on_host or is_above_on_host, f"host node {node.id} hangs in the air"
            assert is_under_root or node.parent.num_locks >= node.num_locks >= 0
            num_below = sum(child.is_on_device for child in node.children.values())
            assert node.num_device_children == num_below
            is_free = node.num_locks == num_below == 0
            assert (node in self.device_leaves) == (is_free and node.is_on_device)
            assert (node in self.host_leaves) == (is_free and not node.is_on_device and not node.children)
        assert len(self.device_leaves) + len(self.host_leaves) <= len(nodes)
        self.device_leaves._check()
        self.host_leaves._check()
