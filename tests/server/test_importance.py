"""The policy on the real server: alive where it should be, refused where it cannot be, absent when off."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from eval.equivalence import ENVIRONMENT, FLAGS, NUM_OUTPUT_TOKENS, answers, mixed_requests
from tests.server.server import free_port, interrupt_start, launch, run_to_exit

IMPORTANCE = ["--radix-eviction-policy", "importance"]
# Small enough for constant eviction on both tiers.
SMALL = ["--max-total-tokens", "2048", "--chunked-prefill-size", "256", "--hicache-ratio", "1.2"]


def stats(server) -> dict:
    return server.get("/radiximp/stats").json()["ranks"][0]


def prompt(seed: int, num_tokens: int) -> list[int]:
    return [1000 + (seed * 7919 + i * 31) % 39000 for i in range(num_tokens)]


@pytest.mark.parametrize(
    "core, has_host, extra", [("rust", True, []), ("python", False, ["--enable-session-radix-cache"])]
)
def test_it_is_alive_whatever_tree_core_the_environment_names(core, has_host, extra):
    environment = {"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": core, **ENVIRONMENT}
    config = ["--radix-eviction-policy-config", '{"half_life_s": 120}']
    flags = [*IMPORTANCE, *SMALL, *config, *extra]
    with launch(flags, env=environment, hierarchical_cache=has_host) as server:
        assert "radiximp: policy importance on tree core ImportanceTreeCore" in server.log()
        for seed in range(10):
            server.generate(prompt(seed, 400), num_tokens=2)
        found = stats(server)
        assert (found["policy"], found["tree_core"]) == ("importance", "ImportanceTreeCore")
        assert found["config"]["half_life_s"] == 120
        assert found["scorer_calls"] > 0 and found["uses"] >= 10
        assert found["evictions"]["device"] > 0
        assert (found["evictions"]["host"] > 0) is has_host
        assert found["sanity_checks"] > 0
        # The clock is the requests' own arrival times.
        assert 0 < found["clock_s"] < 600
        example = Path(__file__).parents[2] / "examples" / "shared_prefix.py"
        shown = subprocess.run(
            [sys.executable, example, server.url], capture_output=True, text=True, check=True
        ).stdout
        assert re.search(r"first question: .* 0\n.*second question: .* [1-9]\d\d", shown, re.S), shown
        for seed in range(10):
            server.generate(prompt(seed, 400), num_tokens=2)
        assert stats(server)["ghost_hits"] > 0
        # Tenants share nothing.
        server.flush()
        shared = prompt(99, 300)
        server.generate(shared, num_tokens=1, cache_salt="a")
        assert server.generate(shared, num_tokens=1, cache_salt="b")["meta_info"]["cached_tokens"] == 0
        assert server.generate(shared, num_tokens=1, extra_key="a")["meta_info"]["cached_tokens"] == 0
        assert server.generate(shared, num_tokens=1, cache_salt="a")["meta_info"]["cached_tokens"] > 290
        server.flush()
        assert stats(server)["nodes"] == stats(server)["ghosts"] == 0


@pytest.mark.parametrize(
    "is_time",
    [
        lambda process, log: len(process.children()) >= 2,
        lambda process, log: "Load weight begin" in log,
    ],
    ids=["workers import", "weights load"],
)
def test_interrupted_start_says_so_in_one_line(is_time, model_path: Path):
    flags = [*IMPORTANCE, "--port", str(free_port())]
    code, output, left = interrupt_start(flags, model=model_path, is_time=is_time)
    assert (code, left) == (130, [])
    assert output.count("error: interrupted; the server was stopped\n") == 1
    assert "Traceback" not in output


def test_off_means_off():
    with launch(SMALL) as server:
        for seed in range(8):
            server.generate(prompt(seed, 400), num_tokens=2)
        assert "Tree Core: RustUnifiedTreeCore" in server.log()
        assert "radiximp: policy" not in server.log()
        with pytest.raises(httpx.HTTPStatusError, match="404"):
            server.get("/radiximp/stats")
        with ThreadPoolExecutor(1) as pool:
            state = pool.submit(server.get, "/server_info").result().json()
        assert "radiximp" not in state["internal_states"][0]


def test_three_ranks_with_skewed_clocks_choose_the_same_victims():
    search_path = [str(Path(__file__).parent / "skewed_clock"), os.environ.get("PYTHONPATH", "")]
    environment = {
        "SGLANG_ENABLE_RANK_CONSENSUS_CHECKER": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, search_path)),
        **ENVIRONMENT,
    }
    with launch([*FLAGS, *IMPORTANCE, "--tp-size", "3", "--log-level", "info"], env=environment) as server:
        bodies = mixed_requests(300, seed=3)
        rows = answers(server, bodies)
        assert len(rows) == 300
        found = stats(server)
        assert found["evictions"]["device"] > 100 and found["evictions"]["host"] > 0
        assert found["importance"]["observations"] > 100
        server.flush()
        line = r"\[(\S+ \S+) TP(\d)\].*flush after (\d+) device and (\d+) host.*digest (\d+)"
        flushes = re.findall(line, server.log())
        assert sorted(rank for _, rank, *_ in flushes) == ["0", "1", "2"]
        assert len({(device, host, digest) for *_, device, host, digest in flushes}) == 1
        assert int(flushes[0][-1]) == found["victim_digest"]
        clocks = sorted(datetime.fromisoformat(when) for when, *_ in flushes)
        assert all(b - a > timedelta(minutes=30) for a, b in pairwise(clocks)), clocks
        # What came from the cache said what a cold prefill says.
        warm = [(row, body) for row, body in zip(rows, bodies, strict=True) if row["cached"] > 200][-8:]
        assert len(warm) == 8
        for row, body in warm:
            server.flush()
            (cold,) = answers(server, [body])
            assert cold == {**row, "cached": 0}


def test_it_answers_what_lru_answers():
    bodies = mixed_requests(60, seed=1)
    with launch([*FLAGS, "--radix-eviction-policy", "lru"], env=ENVIRONMENT) as server:
        expected = answers(server, bodies)
    with launch([*FLAGS, *IMPORTANCE], env=ENVIRONMENT) as server:
        found = answers(server, bodies)
        assert stats(server)["evictions"]["device"] > 20
        assert stats(server)["sanity_checks"] > 0
        # lru's server has no tap: what it reads changes no answer either.
        assert stats(server)["importance"]["observations"] > 20
    for a, b in zip(expected, found, strict=True):
        assert (a["tokens"], a["logprobs"]) == (b["tokens"], b["logprobs"])
        assert len(a["tokens"]) == NUM_OUTPUT_TOKENS


@pytest.mark.parametrize(
    "flags, sentence",
    [
        (
            ["--radix-eviction-policy-config", '{"halflife_s": 3}'],
            "error: --radix-eviction-policy-config: unknown key 'halflife_s'; expected one of score",
        ),
        (
            ["--radix-eviction-policy-config", '{"half_life_s": -1}'],
            "error: --radix-eviction-policy-config: half_life_s: -1 is out of range; expected a number from 0",
        ),
        (
            ["--radix-eviction-policy-config", "[1]"],
            "error: --radix-eviction-policy-config: expected a JSON object, got [1]",
        ),
        (
            ["--radix-eviction-policy-config", '{"record_path": "/nowhere/ops.jsonl"}'],
            "error: --radix-eviction-policy-config: record_path: cannot write /nowhere/ops.jsonl: No such file",
        ),
        (["--disable-radix-cache"], "has nothing to evict with --disable-radix-cache; drop one of them"),
    ],
)
def test_a_mistake_is_one_line_before_any_weight_is_loaded(model_path: Path, flags, sentence):
    code, output = run_to_exit([*IMPORTANCE, *flags], model=model_path)
    assert code == 2
    assert [line for line in output.splitlines() if sentence in line]
    assert "Traceback" not in output and "Load weight" not in output


def test_a_broken_plugin_stops_the_launch(model_path: Path, tmp_path: Path):
    # A package that shadows one module of the plugin, as a half-finished upgrade would.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, types\nsys.modules['radiximp.serving.tree.use_log'] = types.ModuleType('use_log')\n"
    )
    environment = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    code, output = run_to_exit(IMPORTANCE, model=model_path, env=environment)
    assert code != 0
    assert "use_log" in output
    assert "The server is fired up" not in output


def test_the_flag_is_in_the_help():
    shown = subprocess.run(
        [sys.executable, "-m", "sglang.launch_server", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert re.search(r"--radix-eviction-policy \{[^}]*importance", shown)


def test_serve_refuses_what_cannot_work(model_path: Path, tmp_path: Path):
    def refusal(*arguments: str, **env: str) -> str:
        command = [sys.executable, "-m", "radiximp.cli", "serve", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env})
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
        return done.stderr

    assert f"model folder {tmp_path / 'none'} does not exist" in refusal("--model", str(tmp_path / "none"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"cannot listen on 127.0.0.1:{port}" in refusal("--model", str(model_path), "--port", port)
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert str(blocked) in refusal(RADIXIMP_CACHE=str(blocked))
