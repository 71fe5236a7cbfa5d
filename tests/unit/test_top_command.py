"""What `radiximp top` shows of a look and of two; the terminal and the server are tested in tests/server."""

from __future__ import annotations

import copy

import pytest
from rich.console import Console

from radiximp.cli.top_view import percent, screen

RANK = {
    "dp_rank": 0, "version": "0.1", "policy": "importance", "reuse_classes": 12, "nodes": 3456, "ghosts": 7,
    "prompt_tokens": {"user": 1000, "warm": 5},
    "hit_tokens": {"user": {"device": 400, "host": 100, "storage": 0}, "warm": {"device": 0, "host": 0, "storage": 0}},
    "regret_tokens": 50, "evicted_tokens": {"device": 2000, "host": 10}, "pinned_tokens": 64, "pin_budget_tokens": 1024,
    "guard": {"is_tripped": False, "trips": 1, "hit_rate": 0.5, "shadow_lru_hit_rate": 0.25},
    "what_if": {"sizes": [{"scale": 2.0, "host_tokens": 10, "device_tokens": 5, "hit_rate": 0.61, "standard_error": 0.01}]},
}  # fmt: skip
LOOK = {
    "stats": {"ranks": [RANK]},
    "pins": {"ranks": [{"pins": [{"pin_id": "a" * 32, "hard": False, "tokens_pinned": 64, "tokens_requested": 80, "expires_in_s": None}]}]},
    "hotspots": {"ranks": [{"hotspots": [{"node": 77, "tokens": 300, "tokens_on_device": 200, "queries": 9, "sessions": 4, "importance": 1.5, "age_s": 3.2}]}]},
    "prewarm": {"jobs": [{"id": "b" * 32, "state": "running", "tier": "device", "prompts": 4, "ended_prompts": 1, "failed_prompts": 0, "tokens_prefilled": 123}]},
}  # fmt: skip


def shown(now: dict, before: dict | None = None, trouble: str = "") -> str:
    console = Console(width=140, record=True, file=open("/dev/null", "w"))
    console.print(screen(now, before, "http://here", trouble))
    return console.export_text()


def line_with(text: str, word: str) -> list[str]:
    return next(line for line in text.splitlines() if word in line).split()


def test_a_look_shows_shares_since_the_start():
    text = shown(LOOK)
    assert line_with(text, "since start")[2:] == [
        "1,000",
        "40.0%",
        "10.0%",
        "0.0%",
        "50.0%",
        "5.0%",
        "2,000",
        "10",
    ]
    assert "since last look" not in text
    for part in (
        "importance ranks",
        "12 classes",
        "found 50.0%, lru would 25.0%",
        "2x 61.0%",
        "pinned 64 of 1,024",
    ):
        assert part in text
    assert line_with(text, "aaaaaaaaaaaa")[1:] == ["soft", "64", "80", "no", "end"]
    assert line_with(text, "bbbbbbbbbbbb")[1:] == ["running", "device", "4", "1", "0", "123"]
    assert line_with(text, " 300 ")[0] == "77"


def test_two_looks_show_what_happened_between_them():
    now = copy.deepcopy(LOOK)
    now["stats"]["ranks"][0]["prompt_tokens"]["user"] = 1200
    now["stats"]["ranks"][0]["hit_tokens"]["user"]["host"] = 150
    assert line_with(shown(now, LOOK), "since last look")[3:] == [
        "200",
        "0.0%",
        "25.0%",
        "0.0%",
        "25.0%",
        "0.0%",
        "0",
        "0",
    ]


def test_a_server_that_was_started_anew_is_compared_with_nothing():
    before = copy.deepcopy(LOOK)
    before["stats"]["ranks"][0]["prompt_tokens"]["user"] = 9000
    assert "since last look" not in shown(LOOK, before)


def test_nothing_yet_is_no_rate():
    now = copy.deepcopy(LOOK)
    now["stats"]["ranks"][0]["prompt_tokens"]["user"] = 0
    now["pins"]["ranks"][0]["pins"] = []
    text = shown(now, trouble="no answer: refused")
    assert line_with(text, "since start")[3] == "-" and "pins: none" in text and "no answer: refused" in text


@pytest.mark.parametrize("share, text", [(None, "-"), (0.0, "0.0%"), (0.12345, "12.3%")])
def test_a_share_that_is_not_known_is_a_dash(share, text):
    assert percent(share) == text
