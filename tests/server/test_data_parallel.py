"""Two data-parallel ranks, each with a tree of its own: every call reaches both, and each answers for itself."""

from __future__ import annotations

import httpx
import pytest

from tests.server.calls import fresh, generate, pin, prewarm
from tests.server.server import launch

FLAGS = [
    *("--radix-eviction-policy", "importance", "--dp-size", "2", "--max-total-tokens", "4096"),
    *("--enable-cache-report", "--radix-eviction-policy-config", '{"hotspot_queries": 1}'),
]


@pytest.fixture(scope="module")
def api():
    with (
        launch(FLAGS, hierarchical_cache=False) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        yield client


def ranks(api, path: str) -> list[dict]:
    return api.get(path).raise_for_status().json()["ranks"]


def test_statistics_come_from_each_rank(api):
    before = [rank["requests"]["user"] for rank in ranks(api, "/radiximp/stats")]
    for rank in (0, 1, 1):
        generate(api, fresh(30), routed_dp_rank=rank)
    after = ranks(api, "/radiximp/stats")
    assert [rank["dp_rank"] for rank in after] == [0, 1]
    assert [rank["requests"]["user"] - old for rank, old in zip(after, before, strict=True)] == [1, 2]


def test_a_prompt_is_warm_on_both_ranks(api):
    ids = fresh(300)
    result = prewarm(api, ids)
    assert result["error"] is None and result["tokens_prefilled"] == 600
    assert [tiers["device"] for tiers in result["tiers"]] == [300, 300]
    for rank in (0, 1):
        assert generate(api, [*ids, *fresh(10)], routed_dp_rank=rank)["cached_tokens"] == 300


def test_a_pin_lies_on_both_ranks_and_tells_the_least_that_it_holds(api):
    ids = fresh(200)
    generate(api, ids, routed_dp_rank=1)
    made = pin(api, ids, ttl_s=600).json()
    assert made["tokens_pinned"] == 0  # the first rank has none of it
    assert [rank["pinned_tokens"] for rank in ranks(api, "/radiximp/stats")] == [0, 200]
    assert prewarm(api, ids)["error"] is None
    assert api.delete(f"/radiximp/pins/{made['pin_id']}").status_code == 200
    assert pin(api, ids, ttl_s=600).json()["tokens_pinned"] == 200


def test_hotspots_are_counted_per_rank(api):
    assert [rank["dp_rank"] for rank in ranks(api, "/radiximp/hotspots")] == [0, 1]
