"""Golden hits of the policies that nobody tunes, unpinned on Mooncake's hour; the bound is above them all.

What makes them: `replay_unpinned(tree, open_trace(path).requests(), share of 182 790 distinct pages, 0)`.
"""

from __future__ import annotations

import pytest

from radiximp.replay.belady import Belady
from radiximp.replay.engine import replay_unpinned
from radiximp.replay.readers import open_trace
from tests.unit.replay_rig import make_tree

NUM_DISTINCT_PAGES = 182_790
# Share of the distinct pages that the cache holds -> tokens found, of 144 793 823.
# lfu and slru agree: whatever came back once outranks all that is new, and is never let go.
GOLDEN = {
    1: {"belady": 36_373_385, "lru": 7_719_670, "lfu": 8_592_642, "slru": 8_592_642, "fifo": 7_718_253},
    5: {"belady": 54_098_411, "lru": 28_469_061, "lfu": 18_709_113, "slru": 18_709_113, "fifo": 28_864_679},
    20: {"belady": 54_098_411, "lru": 50_496_729, "lfu": 45_194_967, "slru": 45_194_967, "fifo": 50_880_700},
}


@pytest.mark.parametrize("percent", GOLDEN)
def test_hit_tokens_on_mooncake(public_trace, percent):
    trace = open_trace(public_trace("mooncake_conversation.jsonl.gz"))
    capacity = NUM_DISTINCT_PAGES * percent // 100
    found = {}
    for name in GOLDEN[percent]:
        if name == "belady":
            counts = Belady(trace.requests()).replay(capacity, trace.page_tokens)
        else:
            tree = make_tree(name, page_tokens=trace.page_tokens)
            counts = replay_unpinned(tree, trace.requests(), capacity, 0)
        assert (counts.requests, counts.prompt_tokens) == (12_031, 144_793_823)
        found[name] = counts.device_hit_tokens
    assert found == GOLDEN[percent]


def test_without_a_bound_on_memory_every_policy_finds_all(public_trace):
    trace = open_trace(public_trace("mooncake_conversation.jsonl.gz"))
    everything = Belady(trace.requests()).replay(NUM_DISTINCT_PAGES, trace.page_tokens)
    tree = make_tree("lru", page_tokens=trace.page_tokens)
    counts = replay_unpinned(tree, trace.requests(), NUM_DISTINCT_PAGES, 0)
    assert counts == everything and tree.device_pages == NUM_DISTINCT_PAGES
