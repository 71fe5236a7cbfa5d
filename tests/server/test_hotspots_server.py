"""Hotspots on the real server: restart warm after kill -9, load-back in idle moments, the file by command."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.server.server import Server, launch

PROMPT_TOKENS = 300
PROMPTS = [[3000 + 1000 * number + i for i in range(PROMPT_TOKENS)] for number in range(3)]


@contextmanager
def server(path: Path):
    config = {"hotspots_file": str(path), "hotspots_interval_s": 1, "hotspot_queries": 5}
    config |= {"load_back": True, "load_back_pool_fraction": 0.6}
    flags = ["--radix-eviction-policy", "importance", "--radix-eviction-policy-config", json.dumps(config)]
    flags += ["--max-total-tokens", "2048", "--hicache-ratio", "4", "--chunked-prefill-size", "1024"]
    # Load-back happens in idle moments: the server must not sleep through them.
    awake = {"SERVER_FLAGS": ""}
    with launch([*flags, "--max-running-requests", "2", "--admin-api-key", "secret"], env=awake) as running:
        yield running


def ask(server: Server, prompt: list[int], talk: int) -> int:
    """Cached tokens of a request that begins with `prompt` and then differs by `talk`."""
    answer = server.generate(
        [*prompt, *(20_000 + 100 * talk + i for i in range(20))], 1, return_logprob=False
    )
    return answer["meta_info"]["cached_tokens"]


def talk_until(is_true, server: Server) -> None:
    """New conversations about all prompts; a burst of them would make no hotspots, so it takes some seconds."""
    for talk in range(150):
        for prompt in PROMPTS:
            ask(server, prompt, talk)
        if is_true():
            return
    raise AssertionError("a hundred and fifty conversations made no hotspots")


def hotspots(server: Server) -> list[dict]:
    return of_rank(server, "hotspots", limit=3)["hotspots"]


def of_rank(server: Server, call: str, **params) -> dict:
    headers = {"Authorization": "Bearer secret"}
    answer = httpx.get(f"{server.url}/radiximp/{call}", params=params, headers=headers, timeout=60)
    (rank,) = answer.raise_for_status().json()["ranks"]
    return rank


def until(is_true, what: str) -> None:
    deadline_s = time.monotonic() + 90
    while not is_true():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.1)


def entries(path: Path) -> list[dict]:
    return json.loads(path.read_bytes())["content"]["entries"] if path.exists() else []


def command(server: Server, *arguments: str) -> subprocess.CompletedProcess:
    argv = [
        sys.executable,
        "-m",
        "radiximp.cli",
        "hotspots",
        *arguments,
        "--url",
        server.url,
        "--api-key",
        "secret",
    ]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120)


def test_after_kill_9_the_first_requests_of_known_prompts_hit(tmp_path):
    path = tmp_path / "hotspots.json"
    with server(path) as first:
        talk_until(lambda: len(entries(path)) == 3, first)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        check_idle_load_back(first)
        check_the_commands(first, tmp_path)
        saved = entries(path)
        os.killpg(first.process.pid, signal.SIGKILL)
        first.process.wait()
    assert sorted(entry["input_ids"][:PROMPT_TOKENS] for entry in saved) == PROMPTS
    with server(path) as second:
        until(lambda: "prompts are warm" in second.log(), "the prompts were never prefilled")
        assert re.search(r"hotspots_file \S+: 3 of 3 prompts are warm", second.log())
        hits = [ask(second, prompt, talk=150) for prompt in PROMPTS]
        assert sum(hits) >= 0.9 * len(PROMPTS) * PROMPT_TOKENS
        talk_until(lambda: len(hotspots(second)) == 3, second)
        before_s = time.time()
        second.process.send_signal(signal.SIGTERM)
        second.process.wait(60)
    assert max(entry["seen_s"] for entry in entries(path)) >= before_s, "not saved at shutdown"


def check_idle_load_back(server: Server) -> None:
    """Prompts that documents pushed off the device are back on it before anybody asks, and answer as before."""
    expected = server.generate(PROMPTS[0], 8)["text"]
    for number in range(3):
        server.generate([5 + number * 7 + i * 11 for i in range(1600)], 1, return_logprob=False)

    def is_back() -> bool:
        return all(found["tokens_on_device"] == found["tokens"] for found in hotspots(server))

    until(is_back, "the hotspots never came back to the device")
    brought = of_rank(server, "stats")["load_back"]
    assert brought["tokens"] >= PROMPT_TOKENS, brought
    answer = server.generate(PROMPTS[0], 8)
    assert answer["text"] == expected and answer["meta_info"]["cached_tokens"] >= PROMPT_TOKENS - 1


def check_the_commands(server: Server, folder: Path) -> None:
    shown = command(server, "show", "--json")
    assert len(json.loads(shown.stdout)["ranks"][0]["hotspots"]) == 3, shown.stderr
    exported = command(server, "export", str(folder / "mine.json"))
    assert exported.returncode == 0 and "3 prompts" in exported.stdout, exported.stderr
    assert stat.S_IMODE((folder / "mine.json").stat().st_mode) == 0o600
    imported = command(server, "import", str(folder / "mine.json"))
    assert imported.returncode == 0 and "3 of 3 prompts are warm" in imported.stdout, imported.stderr
    (folder / "other.json").write_text("{}")
    refused = command(server, "import", str(folder / "other.json"))
    assert refused.returncode == 2 and "expected radiximp hotspots of version 1" in refused.stderr
