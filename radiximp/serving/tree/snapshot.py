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
    """Chains of only children that are alike, each as one, numbered so that what is above comes first.

    lasts, parents, tokens: of each its last node, the number of the run above (-1: none), its tokens. inner: numbers of those that others
    continue. chains: number -> (first node, how many), of more than one node. Lists of numbers and nodes, leaves in bulk: a
    container a node would set off the garbage collector in a process that has millions, and a loop takes several times as long.
    """

    def __init__(self, root) -> None:
        self.lasts: list = []
        self.parents: list[int] = []
        self.tokens: list[int] = []
        self.inner: list[int] = []
        self.chains: dict[int, tuple[Any, int]] = {}
        waiting, above = self._children(root, -1)
        while waiting:
            following, numbers = self._children(*self._run(waiting.pop(), above.pop()))
            waiting += following
            above += numbers

    def _children(self, node, number: int) -> tuple[list, list[int]]:
        """Add what of the node's children are leaves; the others, each with `number`, which they continue."""
        children = node.children.values()
        leaves = [child for child in children if not child.children]
        self.lasts += leaves
        self.parents += [number] * len(leaves)
        self.tokens += [len(leaf.key) for leaf in leaves]
        if len(leaves) == len(children):
            return [], []
        others = [child for child in children if child.children]
        return others, [number] * len(others)

    def _run(self, first, above: int) -> tuple[Any, int]:
        """Add the run that begins with a node that others continue; its last node and number."""
        last, num_tokens, num_nodes = first, len(first.key), 1
        while len(last.children) == 1:
            (child,) = last.children.values()
            if _mark(last) != _mark(child):
                break
            last, num_tokens, num_nodes = child, num_tokens + len(child.key), num_nodes + 1
        number = len(self.lasts)
        if num_nodes > 1:
            self.chains[number] = (first, num_nodes)
        if last.children:
            self.inner.append(number)
        self.lasts.append(last)
        self.parents.append(above)
        self.tokens.append(num_tokens)
        return last, number

    def num_nodes(self, number: int) -> int:
        """Nodes in a run."""
        return self.chains[number][1] if number in self.chains else 1

    def of(self, number: int) -> list:
        """The nodes of a run, the last one first."""
        nodes = [self.lasts[number]]
        if number in self.chains:
            first = self.chains[number][0]
            while nodes[-1] is not first:
                nodes.append(nodes[-1].parent)
        return nodes

    def sums(self) -> tuple[list[int], list[int]]:
        """Of each run and all below it: tokens, nodes."""
        nodes = [1] * len(self.lasts)
        for number, (_, num_nodes) in self.chains.items():
            nodes[number] = num_nodes
        return self._with_those_below(self.tokens), self._with_those_below(nodes)

    def _with_those_below(self, counts: list[int]) -> list[int]:
        parents, own = np.array(self.parents, dtype=np.int64), np.array(counts, dtype=np.int64)
        is_leaf = np.ones(len(own), dtype=bool)
        is_leaf[self.inner] = False
        is_leaf &= parents >= 0
        totals = np.zeros(len(own), dtype=np.int64)
        np.add.at(totals, parents[is_leaf], own[is_leaf])
        sums = (totals + own).tolist()
        for number in reversed(self.inner):
            if self.parents[number] >= 0:
                sums[self.parents[number]] += sums[number]
        return sums


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
        leaves, chains = self.evictable_device_leaves, runs.chains
        tiers, flags, importance, last_uses_s, queries = [], [], [], [], []
        lasts = [runs.lasts[number] for number in numbers]
        for number, last in zip(numbers, lasts, strict=True):
            tier, flag = _mark(last)
            tiers.append(tier)
            flags.append(flag | EVICTABLE if last in leaves else flag)
            history = self.history_of(last)
            if number in chains:
                run = runs.of(number)
                histories = [self.history_of(node) for node in run]
                importance.append(_density(run, histories))
                last_uses_s.append(max(history.last_use_s for history in histories))
                queries.append(histories[-1].num_queries)
            else:
                importance.append(None if history.importance is None else round(history.density, 3))
                last_uses_s.append(history.last_use_s)
                queries.append(history.num_queries)
        return {
            "id": [last.id for last in lasts],
            "parent": [row_of[runs.parents[number]] for number in numbers],
            "tokens": [runs.tokens[number] for number in numbers],
            "nodes": [runs.num_nodes(number) for number in numbers],
            "tiers": tiers,
            "flags": flags,
            "importance": importance,
            "age_s": np.round(self.clock.now_s() - np.array(last_uses_s), 1).tolist(),
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

    def _chances(self, node) -> dict[str, float]:
        """That it is used within so many seconds, as the policy has it."""
        history = self.history_of(node)
        return {f"{seconds}_s": self.policy.chance_within(history, seconds) for seconds in _CHANCES_S}


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
