"""Where every prompt is one page the tree is a flat cache: then libCacheSim counts the same hits.

Its LRU and FIFO are ours exactly. ARC and S3-FIFO differ in what is a tie and in how much they remember; ours stay
within 2 per cent.
"""

from __future__ import annotations

import numpy as np
import pytest

from radiximp.replay.engine import replay_unpinned
from radiximp.replay.trace import Request
from tests.unit.replay_rig import make_tree

libcachesim = pytest.importorskip("libcachesim")

SIZES = (10, 20, 50, 100, 200, 500, 1000, 2000)


@pytest.fixture(scope="module")
def keys() -> list[int]:
    """20 000 uses of about 2 500 objects, a few of them most of the time."""
    drawn = np.random.default_rng(0).zipf(1.1, 60_000)
    return drawn[drawn < 5000][:20_000].tolist()


def our_hits(name: str, keys: list[int], size: int) -> int:
    requests = (Request(float(now), np.array([key], np.int64), 1) for now, key in enumerate(keys))
    return replay_unpinned(make_tree(name, page_tokens=1), requests, size, 0).device_hit_tokens


def their_hits(name: str, keys: list[int], size: int) -> int:
    cache = getattr(libcachesim, name)(cache_size=size, hashpower=16)
    request = libcachesim.Request()
    request.obj_size = 1
    num_hits = 0
    for request.obj_id in keys:
        num_hits += cache.get(request)
    return num_hits


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("ours", "theirs"), [("lru", "LRU"), ("fifo", "FIFO")])
def test_hits_are_equal(keys, ours, theirs, size):
    assert 1000 < our_hits(ours, keys, size) == their_hits(theirs, keys, size)


@pytest.mark.parametrize("size", [size for size in SIZES if size >= 50])
@pytest.mark.parametrize(("ours", "theirs"), [("arc", "ARC"), ("s3fifo", "S3FIFO")])
def test_hits_are_close(keys, ours, theirs, size):
    assert our_hits(ours, keys, size) == pytest.approx(their_hits(theirs, keys, size), rel=0.02)
