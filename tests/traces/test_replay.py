"""`radiximp replay` on a public trace: golden counts of the policies that have nothing to learn.

radiximp replay mooncake_conversation.jsonl.gz --policy lru,importance,belady --capacity 1%,5%,20% --warmup 0
"""

from __future__ import annotations

import orjson

from radiximp.cli import main

PROMPT_TOKENS = 144_793_823
# per cent of the 182,790 distinct pages -> hit tokens
GOLDEN = {"lru": [7_719_670, 28_469_061, 50_496_729], "belady": [36_373_385, 54_098_411, 54_098_411]}


def test_mooncake(public_trace, tmp_path):
    path = tmp_path / "rows.json"
    argv = [
        *("--policy", "lru,importance,belady"),
        *("--capacity", "1%,5%,20%"),
        *("--warmup", "0"),
        *("--jobs", "2"),
    ]
    assert (
        main(["replay", str(public_trace("mooncake_conversation.jsonl.gz")), *argv, "--json", str(path)]) == 0
    )
    rows = orjson.loads(path.read_bytes())["rows"]
    assert {(row["requests"], row["prompt_tokens"]) for row in rows} == {(12_031, PROMPT_TOKENS)}
    hits = {
        policy: [row["hit_tokens"] for row in rows if row["policy"] == policy]
        for policy in ("lru", "importance", "belady")
    }
    assert {policy: hits[policy] for policy in GOLDEN} == GOLDEN
    # Learned, so not golden: far above lru where memory is short, within a point of it where it is not.
    gains = [(ours - lru) / PROMPT_TOKENS for ours, lru in zip(hits["importance"], hits["lru"], strict=True)]
    assert gains[0] > 0.03 and min(gains) > -0.01
    assert all(ours <= bound for ours, bound in zip(hits["importance"], hits["belady"], strict=True))
