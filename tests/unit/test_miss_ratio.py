"""The what-if curve against a cache that is simulated page by page, and its bounds."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from radiximp.policy.miss_ratio import MissRatioCurve, unit_hashes, unit_tokens_of


def paths(num_requests: int, seed: int = 0) -> list[list[int]]:
    """Conversations that grow, behind one of three system prompts; ids are pages."""
    rng = np.random.default_rng(seed)
    fresh = iter(range(1000, 10**9))
    systems = [[n * 100 + i for i in range(6)] for n in range(3)]
    talks: list[list[int]] = []
    found = []
    for _ in range(num_requests):
        if talks and rng.random() < 0.7:
            talk = talks[-1 - min(int(rng.exponential(12)), len(talks) - 1)]
        else:
            talk = list(systems[rng.integers(3)])
            talks.append(talk)
        talk.extend(next(fresh) for _ in range(rng.integers(1, 8)))
        found.append(list(talk))
    return found


def lru_hits(requests: list[list[int]], capacity_pages: int) -> int:
    """Pages that lru over pages hits, tails of paths first; the pages' prefixes tell them apart."""
    held: OrderedDict[tuple, None] = OrderedDict()
    hits = 0
    for path in requests:
        prefixes = [tuple(path[: end + 1]) for end in range(len(path))]
        hits += sum(prefix in held for prefix in prefixes)
        for prefix in reversed(prefixes):
            held[prefix] = None
            held.move_to_end(prefix)
        while len(held) > capacity_pages:
            held.popitem(last=False)
    return hits


def curve_of(requests, page_tokens=16, **settings) -> MissRatioCurve:
    unit_tokens = unit_tokens_of(page_tokens)
    curve = MissRatioCurve(unit_tokens, **{"early_factor": 1, **settings})
    for path in requests:
        curve.use(unit_hashes(path, 1, page_tokens // unit_tokens), len(path) * page_tokens)
    return curve


@pytest.mark.parametrize("capacity_pages", [16, 64, 256, 1024])
def test_with_every_page_sampled_it_is_lru(capacity_pages):
    requests = paths(400)
    asked = sum(map(len, requests))
    curve = curve_of(requests, rate=1.0)
    assert curve.hit_rate(capacity_pages * 16) == pytest.approx(lru_hits(requests, capacity_pages) / asked)


@pytest.mark.parametrize("capacity_pages", [200, 1000, 5000])
def test_a_sample_is_within_its_stated_error(capacity_pages):
    """Over seeds of the traffic: the error is of the size that it says, and small."""
    off, stated = [], []
    for seed in range(6):
        requests = paths(1500, seed)
        curve = curve_of(requests, page_tokens=64, rate=0.05)
        true = lru_hits(requests, capacity_pages) / sum(map(len, requests))
        off.append(abs(curve.hit_rate(capacity_pages * 64) - true))
        stated.append(curve.standard_error(capacity_pages * 64))
    assert np.mean(off) < 0.02
    assert np.mean(off) < 2 * np.mean(stated) < 0.1


def test_memory_is_bounded_and_the_rate_says_what_is_left():
    requests = paths(3000)
    curve = curve_of(requests, rate=1.0, max_samples=500)
    assert curve.num_samples <= 500 and curve.rate < 1.0
    assert len(curve._num_units) <= 1 << 13
    true = lru_hits(requests, 2000) / sum(map(len, requests))
    assert curve.hit_rate(2000 * 16) == pytest.approx(true, abs=0.06)


def test_little_traffic_is_sampled_more_until_there_is_enough():
    requests = paths(100)
    few = curve_of(requests, rate=0.04, early_factor=4)
    assert few.rate == pytest.approx(0.16)
    many = curve_of(paths(4000), page_tokens=64, rate=0.04, early_factor=4)
    assert many.rate == 0.04 and many.num_samples < 1 << 16
    true = lru_hits(requests, 64) / sum(map(len, requests))
    assert few.hit_rate(64 * 16) == pytest.approx(true, abs=0.1)


def test_the_hottest_page_may_be_outside_the_sample():
    """Half of all tokens are one shared prefix that the sample has not: they are hits, not nothing."""
    shared = next(n for n in range(10**6) if (unit_hashes([n], 1, 1) >= np.uint64(2**63)).all())
    curve = MissRatioCurve(16, rate=0.5, early_factor=1)
    for number in range(2000):
        curve.use(unit_hashes([shared, 10**7 + number], 1, 1), 32)
    assert curve.hit_rate(100 * 16) == pytest.approx(0.5, abs=0.03)


def test_old_requests_fade():
    curve = MissRatioCurve(16, rate=1.0, half_life_queries=50)
    for number in range(500):
        curve.use(unit_hashes([number], 1, 1), 16)
    assert curve.hit_rate(10**6) == pytest.approx(0.0, abs=1e-9)
    for _ in range(500):
        curve.use(unit_hashes([7], 1, 1), 16)
    assert curve.hit_rate(10**6) == pytest.approx(1.0, abs=0.01)


def test_what_is_not_counted_is_held_all_the_same():
    curve = MissRatioCurve(16, rate=1.0)
    curve.use(unit_hashes([1, 2, 3], 1, 1), 48, is_counted=False)
    assert curve.hit_rate(48) is None and curve.standard_error(48) is None
    curve.use(unit_hashes([1, 2, 3], 1, 1), 48)
    assert [curve.hit_rate(tokens) for tokens in (15, 16, 32, 64)] == [
        0.0,
        pytest.approx(1 / 3),
        pytest.approx(2 / 3),
        1.0,
    ]
    curve.forget()
    curve.clear_counts()
    curve.use(unit_hashes([1, 2, 3], 1, 1), 48)
    assert curve.hit_rate(48) == 0.0


def test_hashes_tell_prefixes_pages_and_tenants_apart():
    tokens = np.arange(64)
    whole = unit_hashes(tokens, 16, 1)
    assert len(whole) == 4 and len(set(whole.tolist())) == 4
    assert (unit_hashes(tokens[:40], 16, 1) == whole[:2]).all()
    other = tokens.copy()
    other[17] += 1
    changed = unit_hashes(other, 16, 1)
    assert changed[0] == whole[0] and not (changed[1:] == whole[1:]).any()
    assert not (unit_hashes(tokens, 16, 1, namespace=5) == whole).any()
    assert len(set(unit_hashes(np.zeros(64, np.int64), 1, 1).tolist())) == 64
    assert len(unit_hashes([], 16, 4)) == 0
    # 128 thousand at a rate of one in eight: as even as chance allows
    many = unit_hashes(np.arange(128_000), 1, 1)
    assert (many < np.uint64(2**61)).mean() == pytest.approx(0.125, abs=0.004)
