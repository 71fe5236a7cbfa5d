"""The tree as columns and one node explained: right, bounded, quick at 50,000 nodes, and a question."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import numpy as np
import orjson
import pytest
from sglang.srt.mem_cache.base_prefix_cache import EvictParams

from radiximp.serving.api import commands
from radiximp.serving.tree import snapshot as tree_snapshot
from radiximp.serving.tree.snapshot import EVICTABLE, HOST, IN_USE, PINNED
from tests.sglang.builders import (
    build_cache,
    build_served_cache,
    fresh_prompts,
    insert,
    key_of,
    lookup,
    request,
    victims_of_traffic,
)
from tests.sglang.kv_rig import KvRig


def rows_of(snapshot: dict) -> list[dict]:
    columns = snapshot["columns"]
    assert len({len(column) for column in columns.values()}) == 1
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def three_talks(cache, fresh) -> list[list[int]]:
    system = fresh(100)
    talks = [system + fresh(50 + n) for n in range(3)]
    for talk in talks:
        request(cache, talk)
    return talks


def test_columns_say_what_the_tree_holds():
    cache, fresh = build_cache(4096), fresh_prompts()
    three_talks(cache, fresh)
    snapshot = cache.tree_core.snapshot()
    head, *tails = rows_of(snapshot)
    assert (head["parent"], head["tokens"], head["subtree_tokens"], head["subtree_nodes"]) == (
        -1,
        100,
        253,
        4,
    )
    assert sorted(tail["tokens"] for tail in tails) == [50, 51, 52]
    assert {tail["parent"] for tail in tails} == {0} and {tail["flags"] for tail in tails} == {EVICTABLE}
    assert head["queries"] == 3 and head["flags"] == 0 and head["importance"] is None
    assert (snapshot["tokens"], snapshot["nodes"], snapshot["left_out_nodes"]) == (253, 4, 0)
    assert snapshot["next_victim"] == cache.tree_core.dry_run(1)[0]["node"]
    orjson.dumps(snapshot)


def test_a_chain_of_only_children_is_one_row_where_all_of_it_is_alike():
    cache, prompt = build_cache(1024), list(range(100))
    core = cache.tree_core
    for end in (20, 40, 60, 80, 100):
        insert(cache, prompt[:end])
    core.observe(key_of(prompt), [2.0] * 50 + [4.0] * 50)
    (row,) = rows_of(core.snapshot())
    assert (row["tokens"], row["nodes"], row["importance"]) == (100, 5, 3.0)
    core.pin(key_of(prompt[:40]))
    pinned, rest = rows_of(core.snapshot())
    assert (pinned["flags"] & PINNED, pinned["nodes"], rest["nodes"]) == (PINNED, 2, 3)
    assert rest["parent"] == 0 and not rest["flags"] & PINNED


def test_what_a_request_holds_and_what_is_on_the_host_shows():
    rig = KvRig(256, write_policy="write_through")
    handle, _ = rig.start(list(range(48)))
    rig.finish(handle)
    handle, _ = rig.start(list(range(64)))
    held = rows_of(rig.core.snapshot())[0]
    assert held["flags"] & IN_USE and rig.core.explain(held["id"])["state"] == "in_use"
    rig.finish(handle)
    rig.drain()
    rig.cache.evict(EvictParams(num_tokens=256))
    (row,) = rows_of(rig.core.snapshot())
    assert row["tiers"] == HOST
    told = rig.core.explain(row["id"])
    assert told["state"] == "host_only" and told["order"]["host"]["before"] == 0
    rig.close()


def test_the_largest_are_kept_with_all_above_them_and_the_rest_is_counted():
    cache, fresh = build_cache(1 << 16), fresh_prompts()
    rng = np.random.default_rng(1)
    talks = [fresh(20)]
    for _ in range(400):
        talk = talks[rng.integers(len(talks))] + fresh(int(rng.integers(1, 60)))
        talks.append(talk)
        request(cache, talk)
    core = cache.tree_core
    whole, part = core.snapshot(), core.snapshot(max_rows=50)
    kept = rows_of(part)
    assert len(kept) == 50 and len(rows_of(whole)) > 300
    assert sum(row["tokens"] for row in rows_of(whole)) == whole["tokens"] == part["tokens"]
    assert sum(row["tokens"] for row in kept) + part["left_out_tokens"] == part["tokens"]
    assert sum(row["nodes"] for row in kept) + part["left_out_nodes"] == part["nodes"]
    assert all(row["parent"] < number for number, row in enumerate(kept))
    by_size = sorted((row["subtree_tokens"] for row in rows_of(whole)), reverse=True)
    assert sorted((row["subtree_tokens"] for row in kept), reverse=True) == by_size[:50]


def test_a_node_is_explained():
    cache, fresh = build_cache(4096), fresh_prompts()
    three_talks(cache, fresh)
    core = cache.tree_core
    snapshot = core.snapshot()
    head, *tails = (core.explain(row["id"]) for row in rows_of(snapshot))
    assert (head["state"], head["children"], head["order"]["device"]) == ("inner", 3, None)
    assert sorted(tail["order"]["device"]["before"] for tail in tails) == [0, 1, 2]
    first = min(tails, key=lambda tail: tail["order"]["device"]["before"])
    assert first["node"] == snapshot["next_victim"] == head["next_victim"]["node"]
    assert (
        first["rank"] == first["next_victim"]["rank"]
        and first["prefix_tokens"] > first["tokens"] == first["prefix_tokens"] - 100
    )
    assert set(first["chance"]) == {"60_s", "3600_s"}
    assert "preview_ids" not in first
    assert (
        core.explain(first["node"], preview_tokens=7)["preview_ids"]
        == core.prefix_of(core.node_by_id(first["node"]))[100:107]
    )
    assert core.explain(core.root_node.id) is None and core.explain(10**9) is None


def test_a_place_among_many_leaves_is_an_estimate_and_says_so(monkeypatch):
    monkeypatch.setattr(tree_snapshot, "_MAX_RANKED", 32)
    cache, fresh = build_cache(1 << 14), fresh_prompts()
    prompts = [fresh(8) for _ in range(320)]
    for prompt in prompts:
        request(cache, prompt)
    core = cache.tree_core
    newest = core.describe(key_of(prompts[-1]))[0]["node"]
    place = core.explain(newest)["order"]["device"]
    assert not place["is_exact"] and place["leaves"] == 320 and place["before"] >= 280


def test_the_prompt_that_ends_with_a_node_is_pinned_in_its_own_namespace():
    cache, prompt = build_cache(1024), list(range(60))
    core = cache.tree_core
    insert(cache, prompt, extra_key="tenant", cache_salt="salt")
    insert(cache, prompt)
    lookup(cache, prompt[:25], extra_key="tenant", cache_salt="salt")
    (node, _) = core.describe(key_of(prompt, "tenant", "salt"))
    core.pin_book.add("mine", [core.key_to(node["node"])], None, False)
    pinned = [part["is_pinned"] for part in core.describe(key_of(prompt, "tenant", "salt"))]
    assert pinned == [True, False] and not core.describe(key_of(prompt))[0]["is_pinned"]
    assert core.explain(node["node"])["pin_ids"] == ["mine"]
    with pytest.raises(KeyError):
        core.key_to(core.root_node.id)


def test_the_commands_answer_on_the_rank_that_is_asked_and_replies_once_a_group(monkeypatch):
    cache = build_cache(1024)
    insert(cache, list(range(60)))
    core, parallel = cache.tree_core, SimpleNamespace(dp_rank=1, attn_tp_rank=0, attn_cp_rank=0, pp_rank=0)
    monkeypatch.setattr(commands, "get_parallel", lambda: parallel)

    def answer(name: str, **arguments) -> dict:
        return commands.answer(core, "radiximp:" + json.dumps({"name": name, **arguments}), lambda: True)

    reply = answer("tree")
    (node_id,) = orjson.loads(reply["tree"])["columns"]["id"]
    assert reply["seconds"] > 0
    assert answer("node", node_id=node_id, dp_rank=1)["node"]["tokens"] == 60
    assert answer("node", node_id=node_id, dp_rank=0) == {}
    assert answer("node", node_id=10**9, dp_rank=1) == {"node": None}
    pin = {"pin_id": "p", "ttl_s": 60, "hard": False, "now_s": 10.0}
    assert answer("pin_node", node_id=node_id, dp_rank=0, **pin) == {}
    assert answer("pin_node", node_id=10**9, dp_rank=1, **pin) == {"pins": []}
    assert answer("pin_node", node_id=node_id, dp_rank=1, **pin)["pins"][0]["tokens_pinned"] == 60
    parallel.attn_tp_rank = 1
    assert answer("tree") == {}


@pytest.mark.parametrize("config", [{}, {"score": "lrfu"}, {"half_life_s": 0}], ids=["reuse", "lrfu", "lru"])
def test_looking_changes_no_victim(config):
    victims: dict[bool, list] = {}
    for looks in (False, True):
        cache = build_cache(2048, config=config)
        core = cache.tree_core

        def look(core=core, looks=looks) -> None:
            if looks:
                for row in rows_of(core.snapshot())[:3]:
                    core.explain(row["id"], preview_tokens=4)

        found = victims[looks] = victims_of_traffic(cache, 400, look)
        assert len(found) > 50
        cache.sanity_check()
    assert victims[True] == victims[False]


def test_fifty_thousand_nodes_are_looked_at_in_a_bounded_time():
    """200 ms of the scheduler's time is the aim; a loaded machine has twice that."""
    cache, fresh = build_served_cache(1 << 18), fresh_prompts()
    heads = [fresh(8) for _ in range(1000)]
    for number in range(50_000):
        insert(cache, heads[number % 1000] + fresh(4))
    core = cache.tree_core
    assert core.num_nodes > 50_000
    core.snapshot()
    seconds = []
    for _ in range(5):
        started = time.thread_time()
        body = orjson.dumps(core.snapshot())
        seconds.append(time.thread_time() - started)
    (newest,) = core.describe(key_of(heads[0]))
    started = time.thread_time()
    core.explain(newest["node"])
    seconds_of_one = time.thread_time() - started
    print(f"snapshot {min(seconds):.3f} s, {len(body) >> 10} KiB; one node {seconds_of_one:.3f} s")
    assert len(core.snapshot()["columns"]["id"]) == tree_snapshot.MAX_ROWS and len(body) < 2 << 20
    assert min(seconds) < 0.4 and seconds_of_one < 0.2
