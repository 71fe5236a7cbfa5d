"""Fetch or recompute on the real server: the same tokens whatever is fetched, slow or broken."""

from __future__ import annotations

import random
import statistics

import pytest

from radiximp.cli import main
from tests.server.server import launch
from tests.server.throttle import Throttle

POOL_TOKENS = 1024
PROMPT_TOKENS = 320
FLAGS = [
    "--radix-eviction-policy",
    "importance",
    "--radix-eviction-policy-config",
    '{"fetch_decision": "cost", "importance_scorer": "structural"}',
    "--page-size",
    "16",
    "--max-total-tokens",
    str(POOL_TOKENS),
    "--hicache-ratio",
    "4",
    "--enable-cache-report",
]
ENV = {"SGLANG_ENABLE_TREE_CACHE_SANITY_CHECK": "1"}


@pytest.fixture(scope="module")
def throttle(tmp_path_factory) -> Throttle:
    return Throttle(tmp_path_factory.mktemp("throttle"))


@pytest.fixture(scope="module")
def server(throttle):
    with launch(FLAGS, env={**ENV, **throttle.env}) as made:
        yield made


@pytest.fixture(scope="module")
def prompts(server) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(1000, 40000) for _ in range(PROMPT_TOKENS)] for _ in range(5)]


@pytest.fixture(scope="module")
def cold_answers(server, prompts) -> list[dict]:
    """Each prompt's answer when nothing is cached; afterwards some are on the host alone."""
    return [server.generate(prompt) for prompt in prompts]


@pytest.fixture(scope="module")
def cold(cold_answers) -> list[list[int]]:
    return [answer["output_ids"] for answer in cold_answers]


def told(server) -> dict:
    return server.get("/radiximp/calibration").json()["ranks"][0]["calibration"]


def ask(server, prompt) -> tuple[list[int], int, int]:
    """(output, cached tokens from the device, from the host)"""
    answer = server.generate(prompt)
    cached = answer["meta_info"]["cached_tokens"]
    details = answer["meta_info"].get("cached_tokens_details") or {"device": cached, "host": 0}
    assert details["device"] + details["host"] == cached
    return answer["output_ids"], details["device"], details["host"]


def test_a_fetch_is_measured_and_gives_the_cold_output(server, prompts, cold, cold_answers):
    for prompt, expected in zip(prompts, cold, strict=True):
        output, _, _ = ask(server, prompt)
        assert output == expected
    known = told(server)
    assert known["mode"] == "cost"
    assert known["requests"]["fetch_all"] > 0
    assert known["tiers"]["host"]["samples"] > 0
    prefill = known["prefill"]
    assert prefill["samples"] >= len(prompts)
    # However fast the machine is: what the server learned of such a prompt is what such prompts took.
    pairs = PROMPT_TOKENS * (PROMPT_TOKENS + 1) / 2
    learned_s = prefill["overhead_s"] + prefill["s_per_token"] * PROMPT_TOKENS + prefill["s_per_pair"] * pairs
    took_s = statistics.median(answer["meta_info"]["e2e_latency"] for answer in cold_answers)
    assert took_s / 10 < learned_s < 2 * took_s


def test_calibrate_prints_the_servers_costs(server, cold, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["calibrate", "--url", server.url]) == 0
    out = capsys.readouterr().out
    assert "host" in out and "prefill" in out and "fetch_all" in out


def test_copies_that_fail_leave_the_output_and_the_counters_right(server, prompts, cold, throttle):
    before = told(server)["requests"]
    throttle.set(breaks_every=1)
    for prompt, expected in zip(prompts, cold, strict=True):
        output, _, from_host = ask(server, prompt)
        assert (output, from_host) == (expected, 0), "what failed is not counted as cached"
    throttle.set()
    after = told(server)["requests"]
    assert after["fetch_failed"] > before.get("fetch_failed", 0)
    server.flush()  # refuses while anything is locked or in flight
    assert server.get("/health").status_code == 200


def test_a_tier_that_becomes_slow_is_left_alone(server, prompts, cold, throttle):
    for prompt in prompts:
        server.generate(prompt, num_tokens=1)
    throttle.set(delay_s=3.0)
    for number in range(8):
        assert ask(server, prompts[number % 5])[0] == cold[number % 5]
    requests = told(server)["requests"]
    server.generate(prompts[3], num_tokens=1)
    server.generate(prompts[4], num_tokens=1)
    output, _, from_host = ask(server, prompts[0])
    assert (output, from_host) == (cold[0], 0)
    assert requests["recompute_all"] > 0
    throttle.set()
