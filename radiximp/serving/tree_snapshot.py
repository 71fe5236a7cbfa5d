"""The tree for people to look at: all of it as columns, bounded in size, and one node with its place in the order.

Questions: they settle the order, as an eviction would, and change nothing else. The order of columns is the order of a walk, parents first.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
from sglang.srt.mem_cache.unified_cache.components import BASE_COMPONENT_TYPE

# Rows of a snapshot; what is left out is counted. A screen shows fewer, and each costs the scheduler some microseconds.
MAX_ROWS = 10_000
# Leaves that are ranked to tell a node's place; of more an even sample.
_MAX_RANKED = 4096
_CHANCES_S = (60, 3600)
DEVICE, HOST = 1, 2
PINNED, IN_USE, GOES_FIRST, EVICTABLE = 1, 2, 4, 8


class _Runs:
    """Chains of only children that are alike, each as one: its nodes from the top, the number of the run above (-1: none)."""

    def __init__(self, root) -> None:
        self.nodes: list[list] = []
        self.parents: list[int] = []
        self.tokens: list[int] = []
        waiting = [(child, -1) for child in root.children.values()]
        while waiting:
            node, parent = waiting.pop()
            run, num_tokens, children = [node], len(node.key), node.children
            while len(children) == 1:
                (child,) = children.values()
                if _mark(node) != _mark(child):
                    break
                run.append(child)
                node, num_tokens, children = child, num_tokens + len(child.key), child.children
            if children:
                number = len(self.nodes)
                waiting += [(child, number) for child in children.values()]
            self.nodes.append(run)
            self.parents.append(parent)
            self.tokens.append(num_tokens)

    def sums(self) -> tuple[list[int], list[int]]:
        """Of each run and all below it: tokens, nodes."""
        tokens, nodes = list(self.tokens), list(map(len, self.nodes))
        for number in range(len(tokens) - 1, -1, -1):
            parent = self.parents[number]
            if parent >= 0:
                tokens[parent] += tokens[number]
                nodes[parent] += nodes[number]
        return tokens, nodes


def _mark(node) -> tuple[int, int]:
    """What must be alike for nodes to be shown as one: (tiers, flags)."""
    data = node.component_data[BASE_COMPONENT_TYPE]
    tiers = (DEVICE if data.value is not None else 0) | (HOST if data.host_value is not None else 0)
    history = getattr(node, "history", None)
    flags = IN_USE if data.lock_ref else 0
    if history is not None:
        flags |= (PINNED if history.pins else 0) | (GOES_FIRST if history.goes_first else 0)
    return tiers, flags


class TreeSnapshot:
    """Mixin of `ImportanceTreeCore`. snapshot: O(nodes); explain: O(path) and a bounded number of leaves."""

    def snapshot(self, max_rows: int = MAX_ROWS) -> dict[str, Any]:
        """Runs of nodes as columns of equal length, those with most tokens below them; plain JSON types.

        Columns: id (of the run's last node), parent (row, -1 at the top), tokens, nodes, subtree_tokens, subtree_nodes (with what is
        left out), tiers (1 device, 2 host), flags (1 pinned, 2 in use, 4 goes first, 8 can be evicted now), importance (None where
        never observed), age_s since the last use, queries. seconds: of the scheduler's time that it took.
        """
        started = time.perf_counter()
        self.settle()
        runs = _Runs(self.root_node)
        subtree_tokens, subtree_nodes = runs.sums()
        numbers = _largest(subtree_tokens, max_rows)
        columns = {
            **self._columns(runs, numbers),
            "subtree_tokens": [subtree_tokens[n] for n in numbers],
            "subtree_nodes": [subtree_nodes[n] for n in numbers],
        }
        victim = self.evictable_device_leaves.first()
        num_tokens = sum(runs.tokens)
        return {
            "nodes": self.num_nodes,
            "tokens": num_tokens,
            "left_out_nodes": self.num_nodes - sum(columns["nodes"]),
            "left_out_tokens": num_tokens - sum(columns["tokens"]),
            "leaves": {"device": len(self.evictable_device_leaves), "host": len(self.evictable_host_leaves)},
            "next_victim": None if victim is None else victim.id,
            "columns": columns,
            "seconds": time.perf_counter() - started,
        }

    def _columns(self, runs: _Runs, numbers: list[int]) -> dict[str, list]:
        row_of = {number: row for row, number in enumerate(numbers)}
        row_of[-1] = -1
        now_s, leaves = self.clock.now_s(), self.evictable_device_leaves
        ids, tiers, flags, importance, ages_s, queries = [], [], [], [], [], []
        for number in numbers:
            run = runs.nodes[number]
            last = run[-1]
            tier, flag = _mark(last)
            ids.append(last.id)
            tiers.append(tier)
            flags.append(flag | EVICTABLE if last in leaves else flag)
            histories = [self.history_of(node) for node in run]
            importance.append(_density(run, histories))
            ages_s.append(round(now_s - max(history.last_use_s for history in histories), 1))
            queries.append(histories[0].num_queries)
        return {
            "id": ids,
            "parent": [row_of[runs.parents[number]] for number in numbers],
            "tokens": [runs.tokens[number] for number in numbers],
            "nodes": [len(runs.nodes[number]) for number in numbers],
            "tiers": tiers,
            "flags": flags,
            "importance": importance,
            "age_s": ages_s,
            "queries": queries,
        }

    def explain(self, node_id: int, preview_tokens: int = 0) -> dict[str, Any] | None:
        """One node, and why it would or would not go next; None where there is none of that id.

        state: what stands in the way on the device ("in_use", "inner": others continue it, "host_only") or "leaf". order: per tier, how
        many evictable leaves go before it. preview_tokens: of its own tokens the first so many, as "preview_ids".
        """
        node = self._node_arena.get(node_id)
        if node is None or node is self.root_node:
            return None
        self.settle()
        path = self.path_to(node)
        victim = self.evictable_device_leaves.first()
        told = {
            **self._node_info(node, len(node.key)),
            "prefix_tokens": sum(len(part.key) for part in path),
            "depth": len(path),
            "children": len(node.children),
            "state": self._state_of(node),
            "goes_first": self.history_of(node).goes_first,
            "rank": _plain(self.rank(node)),
            "next_victim": None if victim is None else {"node": victim.id, "rank": _plain(self.rank(victim))},
            "order": {
                "device": self._place(node, self.evictable_device_leaves),
                "host": self._place(node, self.evictable_host_leaves),
            },
            "chance": self._chances(node),
            "pin_ids": self.pin_book.ids_of(self.history_of(node).pins),
        }
        if preview_tokens:
            told["preview_ids"] = list(node.key.raw_token_ids()[: min(preview_tokens, len(node.key))])
        return told

    def key_to(self, node_id: int):
        """The prompt that ends with the node, as `pin_book.add` takes it. Raises KeyError for a node that is gone."""
        node = self._node_arena[node_id]
        if node is self.root_node:
            raise KeyError(node_id)
        return self.key_in(node.key.extra_key, node.key.cache_salt, self.prefix_of(node))

    def _state_of(self, node) -> str:
        if node.evicted:
            return "host_only"
        if any(data.lock_ref for data in node.component_data):
            return "in_use"
        return "leaf" if node in self.evictable_device_leaves else "inner"

    def _place(self, node, leaves) -> dict[str, Any] | None:
        """How many of the leaves rank before the node, itself one of them; None for one that is none."""
        if node not in leaves:
            return None
        step = -(-len(leaves) // _MAX_RANKED)
        mine = (*self.rank(node), node.id)
        sample = itertools.islice(leaves, 0, None, step)
        before = sum((*self.rank(leaf), leaf.id) < mine for leaf in sample) * step
        return {"before": min(before, len(leaves) - 1), "leaves": len(leaves), "is_exact": step == 1}

    def _chances(self, node) -> dict[str, float] | None:
        """That it is used within so many seconds, as the law of reuse has it; None for a policy without one."""
        chance_within = getattr(self.policy, "chance_within", None)
        if chance_within is None:
            return None
        return {f"{seconds}_s": chance_within(self.history_of(node), seconds) for seconds in _CHANCES_S}


def _largest(subtree_tokens: list[int], max_rows: int) -> list[int]:
    """Numbers of the runs with most tokens, in the order of the walk; none without the one above it, which has more."""
    if len(subtree_tokens) <= max_rows:
        return list(range(len(subtree_tokens)))
    largest = np.argsort(-np.array(subtree_tokens), kind="stable")[:max_rows]
    return np.sort(largest).tolist()


def _density(run: list, histories: list) -> float | None:
    """Average over the run's tokens that were observed."""
    mass = num_tokens = 0.0
    for node, history in zip(run, histories, strict=True):
        if history.importance is not None:
            mass += history.density * len(node.key)
            num_tokens += len(node.key)
    return round(mass / num_tokens, 3) if num_tokens else None


def _plain(rank: tuple) -> list[float]:
    return [float(part) for part in rank]
