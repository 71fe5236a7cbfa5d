"""The what-if curve of a tree: which sizes it names, whose requests it counts, what it takes to be a prompt."""

from __future__ import annotations

from array import array

import pytest

from radiximp.serving.tree.what_if import WhatIf
from tests.sglang.builders import build_cache, fresh_prompts, request
from tests.sglang.test_metrics import ended


def rates(what_if: WhatIf) -> dict[float, float]:
    return {row["scale"]: row["hit_rate"] for row in what_if.rows()}


def ask(what_if: WhatIf, tokens, salt=None, is_user=True) -> None:
    what_if.note_request(array("q", tokens), len(tokens), None, salt, is_user)


def test_a_cycle_fits_where_there_is_memory_for_it():
    """Ten prompts of 100 in turn: lru hits none of them with 550, all with 1,100 and more."""
    what_if = WhatIf(1.0, 1, 1100)
    prompts = [[n * 1000 + i for i in range(100)] for n in range(10)]
    for _ in range(50):
        for prompt in prompts:
            ask(what_if, prompt)
    found = rates(what_if)
    assert found[0.5] == pytest.approx(0.0, abs=1e-6)
    assert found[1.0] == found[2.0] == found[4.0] == pytest.approx(0.98, abs=0.005)


@pytest.mark.parametrize(
    "host_tokens, is_write_back, held",
    [(0, False, [500, 1000, 2000, 4000]), (2000, False, [1000, 2000, 4000, 8000]), (2000, True, [2000, 3000, 5000, 9000])],
)  # fmt: skip
def test_sizes_are_those_of_the_tiers(host_tokens, is_write_back, held):
    what_if = WhatIf(1.0, 1, 1000)
    what_if.note_host(host_tokens, is_write_back)
    rows = list(what_if.rows())
    assert [row["scale"] for row in rows] == [0.5, 1.0, 2.0, 4.0]
    sizes = [(row["device_tokens"], row["host_tokens"]) for row in rows]
    assert [sum(size) if is_write_back else max(size) for size in sizes] == held
    assert {row["hit_rate"] for row in rows} == {None}


def test_tenants_and_prewarm_requests_are_told_apart():
    what_if = WhatIf(1.0, 1, 1000)
    prompt = list(range(100))
    ask(what_if, prompt, salt="a")
    ask(what_if, prompt, salt="b")
    assert rates(what_if)[1.0] == pytest.approx(0.0, abs=1e-9)
    ask(what_if, prompt, is_user=False)
    assert rates(what_if)[1.0] == pytest.approx(0.0, abs=1e-9)
    ask(what_if, prompt)
    assert rates(what_if)[1.0] == pytest.approx(1 / 3, abs=0.01)


def test_only_whole_pages_are_found():
    what_if = WhatIf(1.0, 64, 100_000)
    ask(what_if, range(100))
    ask(what_if, range(100))
    # Of the second prompt's 100 tokens the page of 64 is a hit; the rest is none, though no unit stands for it.
    assert rates(what_if)[1.0] == pytest.approx(64 / 200, abs=1e-3)


def test_a_request_that_was_never_prefilled_changes_nothing():
    what_if = WhatIf(1.0, 1, 1000)
    what_if.note_request(array("q"), 50, None, None, True)
    assert rates(what_if)[1.0] is None


def test_a_flush_forgets_what_was_held():
    cache = build_cache(1000, config={"what_if_rate": 1.0})
    prompt = fresh_prompts()(100)
    for _ in range(2):
        request(cache, prompt)
        cache.tree_core.what_if.note_request(array("q", prompt), 100, None, None, True)
        cache.reset()
    assert rates(cache.tree_core.what_if)[1.0] == pytest.approx(0.0, abs=1e-9)


def test_a_rate_of_0_switches_it_off():
    core = build_cache(1000, config={"what_if_rate": 0}).tree_core
    core.what_if.note_request(array("q", [1, 2]), 2, None, None, True)
    assert core.stats()["what_if"] == {"rate": 0.0, "samples": 0, "sizes": []}


def test_a_request_ends_once_and_a_health_check_never():
    from radiximp.serving.requests import note_end

    core = build_cache(1000).tree_core
    req = ended("1", list(range(50)))
    note_end(core, req)
    note_end(core, req)
    note_end(core, ended("HEALTH_CHECK_1", [1]))
    running = ended("2", [1])
    running.finished_reason = None
    note_end(core, running)
    assert core.stats()["requests"] == {"user": 1, "warm": 0}
