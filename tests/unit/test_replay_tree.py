"""The replay tree against plain sets of prefixes: what is where, what may go, and how often it was used."""

from __future__ import annotations

import itertools
from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from radiximp.policy.registry import POLICIES
from radiximp.replay.engine import PinnedReplay, hit_pages
from radiximp.replay.trace import Request
from tests.unit.replay_rig import PAGE_TOKENS, make_tree, random_requests

NAMES = [name for name, entry in POLICIES.items() if entry.has_ghosts]
# Few pages, so that prompts share, branch and come back.
prompts = st.tuples(st.sampled_from(["", "tenant"]), st.lists(st.integers(1, 2), min_size=1, max_size=9))
Page = tuple[str, tuple[int, ...]]


def pages_of(prompt) -> list[Page]:
    """A page is known by its namespace and the prefix that it ends."""
    namespace, page_ids = prompt
    return [(namespace, tuple(page_ids[:end])) for end in range(1, len(page_ids) + 1)]


class ReplayTreeMachine(RuleBasedStateMachine):
    """The model: pages on the device, pages on the host, uses of every page ever, prompts that are locked."""

    @initialize(
        name=st.sampled_from([*NAMES, "lru"]),
        host_capacity=st.sampled_from([0, 6, 30]),
        write_policy=st.sampled_from(["write_through", "write_through_selective", "write_back"]),
        trim_tokens=st.sampled_from([0, 1, 48]),
    )
    def start(self, name, host_capacity, write_policy, trim_tokens):
        self.tree = make_tree(
            name,
            host_capacity_pages=host_capacity,
            write_policy=write_policy,
            trim_tokens=trim_tokens,
            ghost_factor=1000,
        )
        self.tree.on_victim = self.on_victim
        self.host_capacity = host_capacity
        self.now_s = 0.0
        self.device: set[Page] = set()
        self.host: set[Page] = set()
        self.uses: Counter[Page] = Counter()
        self.held: list[tuple[list, list[Page]]] = []
        self.victims: list[tuple[str, set[Page]]] = []

    # ---- what the tree says ----

    def namespace_of(self, node) -> str:
        while node.parent is not None:
            node = node.parent
        return next(name for name, root in self.tree._roots.items() if root is node)

    def pages_in(self, node) -> list[Page]:
        prefix, above = [], node
        while above.parent is not None:
            prefix[:0] = above.page_ids.tolist()
            above = above.parent
        every = pages_of((self.namespace_of(node), prefix))
        return every[len(every) - len(node) :]

    def on_victim(self, node, tier):
        pages = set(self.pages_in(node))
        assert not pages & self.locked()
        held = self.device if tier == "device" else self.host
        # write_back copies in the midst of an eviction, and may drop again what it copied.
        copied = self.copied() if tier == "host" and self.tree.write_policy == "write_back" else set()
        assert pages <= held | copied and (tier == "device" or not pages & self.device)
        below = {page for page in held - pages if any(is_below(page, gone) for gone in pages)}
        assert not below, "a victim had something below it"
        held -= pages
        self.victims.append((tier, pages))

    def copied(self) -> set[Page]:
        """What this eviction may have taken to the host: its victims on the device."""
        return {page for tier, pages in self.victims if tier == "device" for page in pages}

    def locked(self) -> set[Page]:
        return {page for _, pages in self.held for page in pages}

    def adopt_host(self, candidates: set[Page], duplicates: set[Page] = frozenset()) -> set[Page]:
        """Pages that came to the host by themselves: some of the candidates; only duplicates may have left it."""
        now = {page for node in self.tree.nodes() if node.is_on_host for page in self.pages_in(node)}
        added = now - self.host
        assert added <= candidates and self.host - now <= duplicates
        self.host = now
        return added

    # ---- operations ----

    @rule(
        prompt=prompts,
        gap_s=st.sampled_from([0.0, 0.1, 3.0, 500.0]),
        finish=st.sampled_from(["", "tool_use"]),
    )
    def request(self, prompt, gap_s, finish):
        self.now_s += gap_s
        used, page_ids = pages_of(prompt), np.array(prompt[1], np.int64)
        path = self.tree.match(prompt[0], page_ids)
        on_device = sum(1 for _ in itertools.takewhile(self.device.__contains__, used))
        known = sum(1 for _ in itertools.takewhile((self.device | self.host).__contains__, used))
        assert hit_pages(path) == (on_device, known - on_device)
        self.tree.load_back(path)
        self.tree.extend(path, prompt[0], page_ids[known:])
        assert [page for node in path for page in self.pages_in(node)] == used
        self.device.update(used)
        self.tree.record(path, self.now_s)
        self.uses.update(used)
        self.tree.record_end(path, finish, 10, self.now_s)
        self.tree.policy.advance(self.now_s)
        self.tree.back_up(path)
        added = self.adopt_host(set(used))
        assert self.tree.write_policy != "write_back" or not added
        if self.tree.write_policy == "write_through" and self.host_capacity >= len(self.device | self.host):
            assert self.host.issuperset(used)

    @rule(prompt=prompts)
    def look_up(self, prompt):
        path = self.tree.match(prompt[0], np.array(prompt[1], np.int64))
        known = self.device | self.host
        expected = list(itertools.takewhile(known.__contains__, pages_of(prompt)))
        assert [page for node in path for page in self.pages_in(node)] == expected

    @rule(prompt=prompts)
    def lock(self, prompt):
        path = self.tree.match(prompt[0], np.array(prompt[1], np.int64))
        path = [node for node in path if node.is_on_device]
        assume(len(self.held) < 4)
        self.tree.lock(path, 1)
        self.held.append((path, [page for node in path for page in self.pages_in(node)]))

    @rule(number=st.integers(0, 3))
    def unlock(self, number):
        assume(number < len(self.held))
        self.tree.lock(self.held.pop(number)[0], -1)

    @rule(num_pages=st.integers(0, 12))
    def evict(self, num_pages):
        free = len(self.device - self.locked())
        before, self.victims = len(self.device), []
        is_write_back = self.tree.write_policy == "write_back"
        duplicates = self.device & self.host if is_write_back else set()
        freed = self.tree.evict(num_pages, self.now_s)
        added = self.adopt_host(self.copied(), duplicates)
        assert self.tree.write_policy == "write_back" or not added
        assert (
            freed == before - len(self.device) == sum(len(p) for tier, p in self.victims if tier == "device")
        )
        assert freed >= min(num_pages, free)
        if self.tree.trim_tokens == 1:
            assert freed == min(num_pages, free)

    # ---- what must always hold ----

    @invariant()
    def agrees(self):
        if not hasattr(self, "tree"):
            return
        tree = self.tree
        tree.policy.advance(self.now_s)
        tree._check()
        nodes = {node: self.pages_in(node) for node in tree.nodes()}
        assert {page for node, pages in nodes.items() if node.is_on_device for page in pages} == self.device
        assert {page for node, pages in nodes.items() if node.is_on_host for page in pages} == self.host
        assert (tree.device_pages, tree.host_pages) == (len(self.device), len(self.host))
        locks = Counter(page for _, pages in self.held for page in pages)
        for node, pages in nodes.items():
            assert {locks[page] for page in pages} == {node.num_locks}
            assert {self.uses[page] for page in pages} == {node.history.num_queries}
            if node.history.held_tokens:
                assert node.history.held_tokens == pytest.approx(len(node) * PAGE_TOKENS)


def is_below(page: Page, other: Page) -> bool:
    """Whether `page` continues the prompt that ends with `other`."""
    return page[0] == other[0] and len(page[1]) > len(other[1]) and page[1][: len(other[1])] == other[1]


TestReplayTree = ReplayTreeMachine.TestCase
TestReplayTree.settings = settings(max_examples=150, stateful_step_count=40)


def test_a_lock_follows_what_is_cut_while_it_is_held():
    tree = make_tree("lru")
    path: list = []
    tree.extend(path, "", np.arange(8))
    tree.lock(path, 1)
    tree.match("", np.array([0, 1, 2, 9]))
    assert [node.num_locks for node in tree.nodes()] == [1, 1]
    tree.lock(path, -1)
    assert [node.num_locks for node in tree.nodes()] == [0, 0]
    assert tree.evict(8, 0.0) == 8


def test_a_request_that_was_cut_while_it_ran_is_counted_once():
    """Both read pages 0..7; while the first runs, the second cuts them after three."""
    whole = np.arange(8)
    prompts = [(0.0, 0.5, whole), (10.0, 10.0, whole), (12.0, 1.0, np.array([0, 1, 2, 9]))]
    requests = [
        Request(at_s, prompt, len(prompt) * PAGE_TOKENS, service_s=service_s)
        for at_s, service_s, prompt in prompts
    ]
    tree = make_tree("slru-ghost")
    PinnedReplay(tree, 100, 0).run(requests)
    assert {node.page_ids[0]: node.history.num_queries for node in tree.nodes()} == {0: 3, 3: 2, 9: 1}
    assert {node.page_ids[0]: node.hit_count for node in tree.nodes()} == {0: 3, 3: 2, 9: 1}


@pytest.mark.parametrize("seed", range(4))
def test_a_pinned_replay_counts_each_request_once_a_page(seed):
    requests = random_requests(seed, 200)
    tree = make_tree("slru-ghost", ghost_factor=1000)
    PinnedReplay(tree, 300, 0).run(requests)
    uses = Counter(page for r in requests for page in pages_of((r.namespace, r.page_ids.tolist())))
    for namespace, root in tree._roots.items():
        stack = [(child, ()) for child in root.children.values()]
        while stack:
            node, prefix = stack.pop()
            prefix += tuple(node.page_ids.tolist())
            assert uses[namespace, prefix] == node.history.num_queries
            stack.extend((child, prefix) for child in node.children.values())
