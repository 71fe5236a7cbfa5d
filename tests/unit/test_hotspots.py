"""Which prefixes are hotspots: on trees built by hand, with a clock in seconds."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from radiximp.config import PolicyConfig
from radiximp.policy.history import NodeHistory
from radiximp.prewarm.hotspots import find_hotspots

HALF_LIFE_S = 7200.0
NOW_S = 10_000.0


@dataclass(eq=False)
class Node:
    """A tree node of `key` tokens; `path` gives it uses."""

    id: int
    key: range
    history: NodeHistory = field(default_factory=lambda: NodeHistory(0.0, 0))
    children: dict = field(default_factory=dict)


class Tree:
    """Paths by name, as a radix tree would have them: `use(["system", "talk 1"], at_s)`."""

    def __init__(self, tokens: dict[str, int]) -> None:
        self._tokens = tokens
        self.root = Node(0, range(0))
        self._num_nodes = 0

    def node(self, path: list[str]) -> Node:
        node = self.root
        for name in path:
            if name not in node.children:
                self._num_nodes += 1
                node.children[name] = Node(self._num_nodes, range(self._tokens[name.split()[0]]))
            node = node.children[name]
        return node

    def use(self, path: list[str], at_s: float, session: int | None = None) -> None:
        for end in range(1, len(path) + 1):
            history = self.node(path[:end]).history
            history.num_queries += 1
            history.last_use_s = at_s
            history.note_spell(at_s)
            if session is not None:
                history.add_session(session)
            if end < len(path):
                history.add_branch(sum(path[end].encode()) * 7 + len(path[end]))

    def find(self, now_s: float = NOW_S):
        return find_hotspots(self.root.children.values(), lambda node: node.history, now_s, HALF_LIFE_S)


def test_the_run_of_nodes_that_sessions_share_is_one_hotspot_and_their_tails_are_none():
    tree = Tree({"system": 300, "tools": 200, "talk": 50, "turn": 40})
    for number in range(20):
        for turn in range(3):
            path = ["system", "tools", f"talk {number}", *(f"turn {n}" for n in range(turn))]
            tree.use(path, 100.0 * number + 10 * turn)
    (found,) = tree.find()
    assert found.node is tree.node(["system", "tools"])
    assert (found.num_tokens, found.own_tokens, found.num_queries) == (500, 500, 60)
    assert 15 <= found.num_sessions <= 25


def test_a_long_conversation_of_one_session_is_none_however_often_it_comes():
    tree = Tree({"system": 300, "talk": 50, "turn": 40})
    for turn in range(40):
        tree.use(["system", "talk 1", *(f"turn {n}" for n in range(turn))], 100.0 * turn)
    assert tree.find() == []


def test_one_burst_is_none():
    tree = Tree({"system": 300, "talk": 50})
    for number in range(200):
        tree.use(["system", f"talk {number}"], 5000 + 0.004 * number)
    assert tree.find() == []
    # The same requests over minutes are one.
    for number in range(200):
        tree.use(["system", f"talk {number}"], 5010 + number)
    assert len(tree.find()) == 1


def test_agents_below_one_system_prompt_are_hotspots_of_their_own_and_a_token_more_is_not():
    tree = Tree({"system": 300, "agent": 100, "word": 1, "talk": 50})
    for number in range(60):
        tree.use(["system", f"agent {number % 3}", f"word {number % 4}", f"talk {number}"], 50.0 * number)
    found = tree.find()
    assert sorted(hotspot.num_tokens for hotspot in found) == [300, 400, 400, 400]
    assert {hotspot.own_tokens for hotspot in found if hotspot.num_tokens == 400} == {100}
    assert found[0].num_tokens == 300 and found[0].num_queries == 60


def test_sessions_that_say_who_they_are_are_counted_by_that():
    tree = Tree({"prompt": 100})
    for number in range(12):
        tree.use(["prompt"], 60.0 * number, session=number * 37)
    assert 11 <= tree.find()[0].num_sessions <= 13  # an estimate


def test_importance_counts_within_bounds_and_an_old_hot_set_fades():
    tree = Tree({"plain": 100, "odd": 100, "old": 100, "talk": 10})
    for name, start_s in (("plain", 5000), ("odd", 5000), ("old", -80_000)):
        for number in range(30):
            tree.use([name, f"talk {name}{number}"], start_s + 60.0 * number)
    config = PolicyConfig()
    tree.node(["odd"]).history.observe(64.0, 100, True, config)
    names = {id(tree.node([name])): name for name in ("plain", "odd", "old")}
    found = tree.find()
    assert [names[id(hotspot.node)] for hotspot in found] == ["odd", "plain", "old"]
    # Thirty uses in thirty stretches of a second, and the clamp at twice an average token.
    assert found[0].score / found[1].score == 2.0 and found[0].importance == 64.0


def test_the_order_does_not_depend_on_the_order_of_children():
    tokens = {"system": 40, "agent": 30, "talk": 20}
    uses = [
        (["system", f"agent {n % 5}", f"talk {n}"], 7.0 * n) for n in range(100)
    ]  # every agent is used alike: ties throughout
    found = []
    for seed in range(5):
        tree = Tree(tokens)
        for path, at_s in uses:
            tree.use(path, at_s)
        order = list(tree.root.children["system"].children.items())
        random.Random(seed).shuffle(order)
        tree.root.children["system"].children = dict(order)
        found.append([(hotspot.node.id, hotspot.score) for hotspot in tree.find()])
    assert all(one == found[0] for one in found) and len(found[0]) == 6


def test_reading_changes_nothing():
    tree = Tree({"system": 300, "talk": 50})
    for number in range(20):
        tree.use(["system", f"talk {number}"], 10.0 * number)
    history = tree.node(["system"]).history
    before = {name: getattr(history, name) for name in NodeHistory.__slots__}
    tree.find(), tree.find(now_s=2 * NOW_S)
    assert before == {name: getattr(history, name) for name in NodeHistory.__slots__}
