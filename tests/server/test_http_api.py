"""Pins, pre-warm and hotspots over HTTP, on the real server."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from radiximp import AsyncClient
from tests.docs_pages import pages
from tests.server.calls import fresh, pin
from tests.server.server import launch

POOL_TOKENS = 4096
FLAGS = [
    "--radix-eviction-policy",
    "importance",
    "--max-total-tokens",
    str(POOL_TOKENS),
    "--admin-api-key",
    "secret",
    "--enable-cache-report",
    "--radix-eviction-policy-config",
    '{"hotspot_queries": 3}',
]
ADMIN = {"Authorization": "Bearer secret"}
SYSTEM = "You are a careful clerk of a small library. " * 12


@pytest.fixture(scope="module")
def api():
    with (
        launch(FLAGS, hierarchical_cache=True) as server,
        httpx.Client(base_url=server.url, headers=ADMIN, timeout=120) as client,
    ):
        yield client


def chat(api, *messages: str) -> int:
    """Cached tokens of a chat with the system prompt and these user messages."""
    body = {"model": "default", "max_tokens": 1, "temperature": 0}
    body["messages"] = [
        {"role": "system", "content": SYSTEM},
        *({"role": "user", "content": m} for m in messages),
    ]
    usage = api.post("/v1/chat/completions", json=body).raise_for_status().json()["usage"]
    return (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0)


def wait(api, url: str) -> dict:
    deadline = time.monotonic() + 120
    while (job := api.get(url).raise_for_status().json())["state"] in ("waiting", "running"):
        assert time.monotonic() < deadline, job
    return job


def flush(api) -> None:
    api.post("/flush_cache", params={"timeout": 30}).raise_for_status()


def fill(api, num_prompts: int) -> None:
    """One-shot prompts that push everything else out."""
    for n in range(num_prompts):
        ids = [1000 + (n * 997 + i * 31) % 39000 for i in range(700)]
        body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 1}}
        api.post("/generate", json=body).raise_for_status()


def test_a_chat_finds_its_prewarmed_prompt_but_for_the_generation_prompt(api):
    flush(api)
    body = {"prompts": [{"messages": [{"role": "system", "content": SYSTEM}]}], "retain_s": 60}
    started = api.post("/radiximp/prewarm", json=body)
    assert started.status_code == 202
    job = wait(api, started.json()["status_url"])
    (result,) = job["results"]
    assert job["state"] == "done" and result["error"] is None
    assert (
        result["tokens_prefilled"]
        == result["tokens"]
        == result["tiers"][0]["device"]
        == result["tokens_pinned"]
    )
    assert api.delete(f"/radiximp/pins/{job['id']}").json()["removed"] == 1
    # "<|im_start|>assistant\n" is what the chat does not share.
    assert chat(api, "Where are the maps?") >= result["tokens"] - 3


def test_a_pinned_prompt_stays_where_an_unpinned_one_goes(api):
    flush(api)
    ids = [5000 + i for i in range(300)]
    api.post(
        "/generate", json={"input_ids": ids, "sampling_params": {"max_new_tokens": 1}}
    ).raise_for_status()
    made = api.post("/radiximp/pins", json={"prompts": [{"input_ids": ids}], "ttl_s": 3600})
    assert made.status_code == 201
    pin = made.json()
    assert (pin["tokens_requested"], pin["tokens_pinned"]) == (300, 300)
    fill(api, 12)
    assert api.get(f"/radiximp/pins/{pin['pin_id']}").json()["tokens_pinned"] == 300
    assert api.delete(f"/radiximp/pins/{pin['pin_id']}").json()["removed"] == 1
    again = api.delete(f"/radiximp/pins/{pin['pin_id']}")
    assert again.status_code == 404 and "no pin" in again.json()["message"]
    assert api.get("/radiximp/stats").json()["ranks"][0]["pinned_tokens"] == 0


def test_pins_stay_within_the_budget_and_a_large_request_is_admitted(api):
    flush(api)
    prompts = [[6000 + 1000 * n + i for i in range(600)] for n in range(3)]
    for ids in prompts:
        body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 1}}
        api.post("/generate", json=body).raise_for_status()
    budget = POOL_TOKENS // 4
    hard = {"hard": True, "ttl_s": 600}
    pinned = [
        api.post("/radiximp/pins", json={"prompts": [{"input_ids": ids}], **hard}).json()["tokens_pinned"]
        for ids in prompts
    ]
    assert pinned == [600, budget - 600, 0]
    assert api.get("/radiximp/stats").json()["ranks"][0]["pinned_tokens"] == budget
    ids = [20_000 + i for i in range(POOL_TOKENS - 100)]
    body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 1}}
    assert api.post("/generate", json=body, timeout=60).status_code == 200


def test_nothing_of_one_tenant_shows_to_another(api):
    flush(api)
    body = {"prompts": [{"messages": [{"role": "system", "content": SYSTEM}]}], "cache_salt": "tenant a"}
    wait(api, api.post("/radiximp/prewarm", json=body).json()["status_url"])
    assert chat(api, "Where are the maps?") == 0
    mine = api.post("/radiximp/pins", json={**body, "ttl_s": 60}).json()
    theirs = api.post("/radiximp/pins", json={**body, "cache_salt": "tenant b", "ttl_s": 60}).json()
    assert mine["tokens_pinned"] > 100 and theirs["tokens_pinned"] == 0


def test_hotspots_lists_what_many_requests_share(api):
    flush(api)
    # Sessions a second apart: a burst would be none.
    for number in range(100):
        chat(api, f"{number} plus {number}?")
        before = api.get("/radiximp/stats").json()
        (rank,) = api.get("/radiximp/hotspots", params={"limit": 1}).json()["ranks"]
        if rank["hotspots"]:
            break
    (top,) = rank["hotspots"]
    assert top["queries"] == number + 1 >= 3 and top["tokens"] > 100 and top["is_on_device"]
    assert top["tokens_on_device"] == top["tokens"] and top["sessions"] >= 3
    after = api.get("/radiximp/stats").json()
    assert before["ranks"][0]["uses"] == after["ranks"][0]["uses"]


@pytest.mark.parametrize(
    "path, body, status, text",
    [
        ("pins", {"prompts": []}, 4, "prompts"),
        ("pins", {"prompts": [{}]}, 4, "expected exactly one of messages, text, input_ids, got 0"),
        ("pins", {"prompts": [{"text": "a", "input_ids": [1]}]}, 4, "got 2"),
        ("pins", {"prompts": [{"text": "a"}], "ttl_s": -1}, 4, "ttl_s"),
        ("pins", {"prompts": [{"text": "a"}], "tll_s": 1}, 4, "tll_s"),
        ("pins", {"prompts": [{"input_ids": [-5]}]}, 400, "expected tokens from 0 to"),
        ("prewarm", {"prompts": [{"text": ""}]}, 4, "text"),
        ("prewarm", {"prompts": [{"text": "word " * 9000}]}, 400, "expected 1 to"),
        ("prewarm", {"prompts": [{"messages": [{"role": "king", "content": 3}]}]}, 400, "messages"),
        ("prewarm", {"prompts": [{"text": "🚀 ünï"}], "tier": "moon"}, 4, "tier"),
    ],
)
def test_bad_input_is_a_clear_4xx_and_the_server_works_on(api, path, body, status, text):
    answer = api.post(f"/radiximp/{path}", json=body)
    assert str(answer.status_code).startswith(str(status)), answer.text
    assert text in answer.text
    assert api.get("/health").status_code == 200


def test_what_changes_something_needs_the_admin_key(api):
    for method, path in (
        ("POST", "pins"),
        ("GET", "pins"),
        ("POST", "prewarm"),
        ("GET", "hotspots"),
        ("GET", "hotspots/export"),
        ("GET", "stats"),
    ):
        assert (
            httpx.request(method, f"{str(api.base_url).rstrip('/')}/radiximp/{path}", json={}).status_code
            == 401
        )


def test_more_jobs_than_may_wait_are_told_when_to_come_back(api):
    body = {"prompts": [{"input_ids": [7, 8, 9]}] * 4}
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: api.post("/radiximp/prewarm", json=body), range(200)))
    codes = {answer.status_code for answer in answers}
    assert codes == {202, 429}
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert int(refused.headers["Retry-After"]) > 0
    for answer in answers:
        if answer.status_code == 202:
            api.delete(answer.json()["status_url"]).raise_for_status()
    assert chat(api, "Still there?") >= 0


def run_command(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300)


def test_the_commands_and_the_client_do_what_the_calls_do(api, tmp_path):
    flush(api)
    url = str(api.base_url).rstrip("/")
    server = ("--url", url, "--api-key", "secret")
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"text": "A long story about a whale. " * 20}, {"input_ids": list(range(3000, 3100))}]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    radiximp = ("-m", "radiximp.cli")
    warmed = run_command(*radiximp, "prewarm", str(prompts), *server)
    assert warmed.returncode == 0 and "2 of 2 prompts are warm" in warmed.stdout, warmed.stderr
    added = run_command(*radiximp, "pins", "add", str(prompts), "--ttl-s", "60", "--json", *server)
    pin = json.loads(added.stdout)
    assert pin["tokens_pinned"] == pin["tokens_requested"] > 100
    listed = run_command(*radiximp, "pins", "list", *server)
    assert listed.stdout.count(pin["pin_id"]) == 2
    assert "device" in run_command(*radiximp, "hotspots", *server).stdout
    shown = listed.stdout.split()[2]  # "rank 0  PIN_ID  prompt 0 ..."
    assert shown == pin["pin_id"]
    assert run_command(*radiximp, "pins", "remove", shown, *server).returncode == 0
    again = run_command(*radiximp, "pins", "remove", pin["pin_id"], *server)
    assert again.returncode == 2 and "404: no pin" in again.stderr
    refused = run_command(*radiximp, "hotspots", "--url", url)
    assert refused.returncode == 2 and "answered 401" in refused.stderr

    async def asynchronously() -> dict:
        async with AsyncClient(url, "secret") as client:
            job = await client.prewarm([{"input_ids": [5, 6, 7]}])
            return await client.wait_for(job["id"])

    assert asyncio.run(asynchronously())["state"] == "done"


def test_the_example_with_three_agents_runs(api):
    example = Path(__file__).parents[2] / "examples" / "warm_agents.py"
    shown = run_command(str(example), str(api.base_url).rstrip("/"), "secret")
    assert shown.returncode == 0, shown.stderr
    cold, warm = map(float, re.search(r"cold (\S+) s, pre-warmed (\S+) s", shown.stdout).groups())
    assert warm < cold


# `calibrate` needs a server that measures: tests/server/test_fetch.py.
ONLINE = {"prewarm", "pins", "hotspots", "doctor", "top", "bundle"}


def commands_for_a_server() -> list[list[str]]:
    """Those of README.md and docs/*.md, each once; a name by itself is a mention, and `top` would not end."""
    found = []
    for page in pages():
        for program, *words in page.commands:
            if (
                program == "radiximp"
                and words[0] in ONLINE
                and words not in (["prewarm"], ["pins"], ["hotspots"], ["bundle"])
            ):
                found.append(words if words[0] != "top" or "--once" in words else [*words, "--once"])
    return sorted({tuple(words): words for words in found}.values(), key=lambda words: words[:2])


def test_the_commands_of_the_pages_run_as_they_stand_there(api, tmp_path):
    prompts = json.dumps({"text": "You are a travel agent."})
    for name in ("prompts.jsonl", "FILE.jsonl"):
        (tmp_path / name).write_text(prompts)
    (rank,) = api.get("/radiximp/pins").json()["ranks"]
    for left in {row["pin_id"] for row in rank["pins"]}:  # of a full budget `doctor` warns, and rightly
        api.delete(f"/radiximp/pins/{left}").raise_for_status()
    pin_id = pin(api, fresh(20), ttl_s=600).json()["pin_id"]
    commands = commands_for_a_server()
    assert {words[0] for words in commands} == ONLINE
    assert [words[1] for words in commands if words[0] == "pins"] == ["add", "list", "remove"]
    for words in commands:
        given = {
            "PIN_ID": pin_id,
            "http://HOST:PORT": str(api.base_url),
            "...": str(api.base_url),
            "KEY": "secret",
        }
        argv = [given.get(word, word) for word in words]
        for flag, value in (("--url", str(api.base_url)), ("--api-key", "secret")):
            argv += [] if flag in argv else [flag, value]
        done = subprocess.run(
            [sys.executable, "-m", "radiximp.cli", *argv], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0 and done.stdout, f"{argv}\n{done.stdout}{done.stderr}"
