"""What every policy must do, whatever it ranks by; and what some of them must do exactly."""

from __future__ import annotations

import functools
import itertools
import random

import numpy as np
import pytest

from radiximp.config import PolicyConfig
from radiximp.policy.history import NodeHistory
from radiximp.policy.registry import POLICIES, make_named_policy
from radiximp.replay.belady import Belady, replay_belady
from radiximp.replay.engine import PinnedReplay, hit_pages, replay_unpinned
from radiximp.replay.trace import Request
from tests.unit.replay_rig import PAGE_TOKENS, lowest, make_tree, random_requests

every_policy = pytest.mark.parametrize("name", POLICIES)


def pages(node) -> tuple[int, ...]:
    """The whole prefix that a node ends."""
    found: list[int] = []
    while node.parent is not None:
        found[:0] = node.page_ids.tolist()
        node = node.parent
    return tuple(found)


def state_of(tree) -> list[tuple]:
    return [
        (node.id, pages(node), *(getattr(node.history, slot) for slot in NodeHistory.__slots__))
        for node in tree.nodes()
    ]


def run_steps(tree, seed: int, num_steps: int, after_step) -> list:
    """Random requests, lookups, locks and evictions; returns the victims."""
    rng, now_s, held, victims = random.Random(seed), 0.0, [], []

    def on_victim(node, tier):
        assert node.num_locks == 0 and node.num_device_children == 0
        victims.append((tier, pages(node)[-1], len(node)))

    tree.on_victim = on_victim
    for request in random_requests(seed, num_steps):
        now_s += rng.expovariate(0.1)
        action = rng.random()
        path = tree.match(request.namespace, request.page_ids)
        if action < 0.7:
            known = sum(map(len, path))
            tree.load_back(path)
            tree.extend(path, request.namespace, request.page_ids[known:])
            tree.record(path, now_s)
            tree.record_end(path, request.finish, request.output_tokens, now_s)
            tree.policy.advance(now_s)
            tree.back_up(path)
        elif action < 0.8 and path and path[-1].is_on_device and len(held) < 3:
            tree.lock(path, 1)
            held.append(path)
        elif action < 0.9 and held:
            tree.lock(held.pop(rng.randrange(len(held))), -1)
        if rng.random() < 0.5:
            tree.evict(rng.randrange(60), now_s)
        tree.policy.advance(now_s)
        after_step(tree)
    for path in held:
        tree.lock(path, -1)
    assert all(node.num_locks == 0 for node in tree.nodes())
    return victims


def check_order(tree) -> None:
    tree._check()
    for index in (tree.device_leaves, tree.host_leaves):
        before = state_of(tree)
        keys = {leaf: tree.policy.key(leaf) for leaf in index}
        chosen = index.first()
        assert chosen is lowest(index, tree.policy)
        assert chosen is index.first()
        assert chosen is next((entry[-1] for entry in index.in_order()), None)
        if chosen is not None:
            rest = set(index) - {chosen}
            assert index.first(skip={chosen}) is lowest(rest, tree.policy)
        assert {leaf: tree.policy.key(leaf) for leaf in index} == keys
        assert state_of(tree) == before


@pytest.mark.parametrize("host_pages", [0, 150])
@every_policy
def test_the_first_leaf_is_the_lowest_and_choosing_changes_nothing(name, host_pages):
    for seed in range(3):
        victims = run_steps(make_tree(name, host_capacity_pages=host_pages), seed, 120, check_order)
        assert len(victims) > 20


@every_policy
def test_one_seed_gives_one_run(name):
    runs = [run_steps(make_tree(name, seed), 5, 150, lambda tree: None) for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert (runs[0] != runs[2]) == (name == "random")


@pytest.mark.parametrize("write_policy", ["write_through", "write_through_selective", "write_back"])
@every_policy
def test_capacities_hold_and_every_lock_is_given_back(name, write_policy):
    capacity, host_capacity = 140, 200
    for run_pinned in (False, True):
        tree = make_tree(name, host_capacity_pages=host_capacity, write_policy=write_policy)
        requests = random_requests(3, 300)
        if run_pinned:
            replay = PinnedReplay(tree, capacity, 0)
            tree.on_victim = lambda node, tier: check_locks(node)
            counts = replay.run(requests)
            assert replay._own_pages == 0 and not replay._waiting
        else:
            counts = replay_unpinned(tree, requests, capacity, 0)
        tree.policy.advance(requests[-1].arrival_s + 1e6)
        tree._check()
        assert tree.device_pages <= capacity
        assert counts.requests == 300
        assert 0 < counts.device_hit_tokens + counts.host_hit_tokens < counts.prompt_tokens
        assert all(node.num_locks == 0 for node in tree.nodes())


def check_locks(node) -> None:
    assert node.num_locks == 0


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(
        ValueError, match="unknown policy 'lrv'; expected one of importance, lru, lfu, slru, "
    ):
        make_named_policy("lrv")


def hits_and_victims(tree, requests, capacity):
    hits, victims = [], []
    tree.on_victim = lambda node, tier: victims.append((pages(node), len(node)))
    for request in requests:
        path = tree.match(request.namespace, request.page_ids)
        hits.append(sum(hit_pages(path)))
        tree.extend(path, request.namespace, request.page_ids[hits[-1] :])
        tree.record(path, request.arrival_s)
        tree.record_end(path, request.finish, request.output_tokens, request.arrival_s)
        tree.evict(tree.device_pages - capacity, request.arrival_s)
    return hits, victims


@pytest.mark.parametrize("name", ["importance", "priority", "tlru"])
@pytest.mark.parametrize("seed", range(5))
def test_in_its_limit_a_policy_is_lru(name, seed, monkeypatch):
    """`importance` at half-life 0, `priority` where all are equal, and `tlru` without a budget."""
    monkeypatch.setattr("radiximp.policy.registry._TLRU_THRESHOLD_TOKENS", 0)
    config = PolicyConfig(importance_weight=0, half_life_s=0)
    requests = random_requests(seed, 400)
    alike = [
        hits_and_victims(make_tree(policy, config=config, ghost_factor=0, trim_tokens=0), requests, 150)
        for policy in ("lru", name)
    ]
    assert alike[0] == alike[1] and len(alike[0][1]) > 100


def test_tlru_lets_the_end_of_a_long_conversation_go_first():
    tree = make_tree("tlru")
    prompts = [np.arange(200), np.arange(1000, 1300)]
    for now_s, prompt in enumerate([prompts[1], prompts[0][:100], prompts[0]]):
        hits_and_victims(tree, [Request(float(now_s), prompt, len(prompt) * PAGE_TOKENS)], 10**6)
    victims = []
    tree.on_victim = lambda node, tier: victims.append(pages(node))
    tree.evict(101, 9.0)
    # The newest turn starts less than 2048 tokens from its end; after it, the least recent.
    assert victims == [tuple(range(200)), tuple(range(1000, 1300))]


def test_random_victims_are_uniform_over_the_leaves():
    """Also once some have outlived a victim: they are as good as a newer one."""
    counts = dict.fromkeys(range(10), 0)
    for seed in range(2000):
        tree = make_tree("random", seed)
        requests = [Request(0.0, np.array([number]), PAGE_TOKENS) for number in range(10)]
        _, victims = hits_and_victims(tree, requests, 9)
        tree.evict(1, 1.0)
        (second, _) = victims[-1]
        counts[second[0]] += 1
    assert sum(counts.values()) == 2000 and min(counts.values()) > 150 and max(counts.values()) < 250


@pytest.mark.parametrize("seed", range(6))
def test_no_policy_beats_belady(seed):
    requests = random_requests(seed, 300)
    best = Belady(requests)
    for capacity in (20, 60, 150, 400):
        bound = best.replay(capacity, PAGE_TOKENS)
        for name in POLICIES:
            counts = replay_unpinned(make_tree(name), requests, capacity, 0)
            assert counts.device_hit_tokens <= bound.device_hit_tokens, name
            assert (counts.requests, counts.prompt_tokens) == (bound.requests, bound.prompt_tokens)


def tiny_requests(rng: random.Random) -> list[Request]:
    alphabet = range(1, 1 + rng.randint(1, 3))
    prompts = [rng.choices(alphabet, k=rng.randint(0, 4)) for _ in range(rng.randint(1, 8))]
    return [Request(0.0, np.array(prompt, np.int64), len(prompt)) for prompt in prompts]


def prefixes(request: Request) -> list[tuple[int, ...]]:
    prompt = request.page_ids.tolist()
    return [tuple(prompt[:end]) for end in range(1, len(prompt) + 1)]


def most_hits(requests: list[Request], capacity: int) -> int:
    """Over every way to evict, with or without holes."""

    @functools.cache
    def best(number: int, held: frozenset) -> int:
        if number == len(requests):
            return 0
        used = prefixes(requests[number])
        hits = sum(1 for _ in itertools.takewhile(held.__contains__, used))
        everything = sorted(held.union(used))
        kept = itertools.combinations(everything, min(capacity, len(everything)))
        return hits + max(best(number + 1, frozenset(some)) for some in kept)

    return best(0, frozenset())


def page_level_hits(requests: list[Request], capacity: int) -> list[int]:
    """Farthest next use page by page, deepest first where equal."""
    held: set[tuple] = set()
    hits = []
    for number, request in enumerate(requests):
        used = prefixes(request)
        hits.append(sum(1 for _ in itertools.takewhile(held.__contains__, used)))
        held |= set(used)

        def next_use(page, number=number):
            later = (i for i in range(number + 1, len(requests)) if page in prefixes(requests[i]))
            return next(later, len(requests))

        held = set(sorted(held, key=lambda page: (next_use(page), len(page), page))[:capacity])
    return hits


def test_belady_is_the_best_of_all_ways():
    rng = random.Random(0)
    for _ in range(150):
        requests, capacity = tiny_requests(rng), rng.randint(0, 4)
        found = replay_belady(requests, capacity, 1).device_hit_tokens
        assert found == most_hits(requests, capacity) == sum(page_level_hits(requests, capacity))


@pytest.mark.parametrize("seed", range(4))
def test_belady_equals_the_page_level_simulation(seed):
    requests = [request for request in random_requests(seed, 80) if request.namespace == ""]
    for capacity in (1, 10, 40, 120):
        hits = page_level_hits(requests, capacity)
        for num_warmup in (0, 20):
            counts = replay_belady(requests, capacity, PAGE_TOKENS, num_warmup)
            assert counts.device_hit_tokens == sum(hits[num_warmup:]) * PAGE_TOKENS
            assert counts.requests == len(requests) - num_warmup
