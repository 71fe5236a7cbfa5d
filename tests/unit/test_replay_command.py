"""`radiximp replay`: what it reads, says and writes, and every line a user can run into."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import orjson
import pytest

from radiximp import __version__
from radiximp.cli import main
from radiximp.config import PolicyConfig
from radiximp.replay import grid, workers
from radiximp.replay.capacity import CapacityError, parse_capacities, tokens_text
from radiximp.replay.run import POLICY_NAMES, Row, replay_one
from radiximp.replay.survey import Survey, survey
from radiximp.replay.trace import Request, Trace
from tests.unit.small_traces import PAGE_TOKENS, agents, error_line, rows_of, written

ROW_KEYS = {
    *(
        "trace",
        "policy",
        "capacity_tokens",
        "host_capacity_tokens",
        "requests",
        "prompt_tokens",
        "hit_tokens",
    ),
    *("hit_rate", "device_hit_rate", "host_hit_rate", "evicted_tokens", "seed", "seconds"),
}


@pytest.fixture
def trace_path(tmp_path):
    return written(agents(), tmp_path / "agents.jsonl")


@pytest.fixture
def fails(capsys):
    """What `radiximp replay` with these arguments says, its name left out."""
    return lambda *argv: error_line(capsys, main, ["replay", *argv]).removeprefix("radiximp replay: ")


def replayed(tmp_path, *argv, command="replay"):
    """The result file of a run that succeeds."""
    path = tmp_path / "result.json"
    assert main([command, *map(str, argv), "--json", str(path)]) == 0
    return orjson.loads(path.read_bytes())


def without_seconds(result):
    return {**result, "rows": [{**row, "seconds": None} for row in result["rows"]]}


# ---- what it reads ----


def test_survey_counts_an_infinite_prefix_tree():
    prompts = [[1, 2, 3], [1, 2, 4], [1, 2], [2, 3], [], [1, 2, 3, 9]]

    def requests():
        for number, pages in enumerate(prompts):
            yield Request(float(number), np.array(pages, np.int64), 4 * len(pages))
        yield Request(9.0, np.array([1, 2], np.int64), 7, namespace="other")

    seen = []
    found = survey(Trace("t", 4, ("a note",), requests), seen.append)
    distinct = {tuple(pages[:end]) for pages in prompts for end in range(1, len(pages) + 1)}
    assert found == Survey(4, ("a note",), 7, 4 * sum(map(len, prompts)) + 7, len(distinct) + 2)
    assert sum(seen) == 7
    assert found.num_distinct_tokens == 4 * found.num_distinct_pages
    assert [found.num_warmup(share) for share in (0, 0.2, 0.5, 0.999)] == [0, 1, 3, 6]


@pytest.mark.parametrize(
    ("text", "pages"),
    [("5%", 14), ("29%", 29 * 290 // 100), ("100%", 290), ("250k", 15625), ("2M", 125_000), ("1.5m", 93_750),
     ("1G", 62_500_000), ("1500000", 93_750), ("16", 1), ("31", 1)],
)  # fmt: skip
def test_capacities(text, pages):
    (capacity,) = parse_capacities(text, "--capacity")
    assert capacity.pages(Survey(16, (), 1, 1, 290), "t") == pages


def test_host_capacities():
    found = parse_capacities("0, 2x,0.5x,10%,0%", "--host-capacity", is_host=True)
    assert [capacity.pages(Survey(16, (), 1, 1, 200), "t", 30) for capacity in found] == [0, 60, 15, 20, 0]
    with pytest.raises(CapacityError, match="--capacity: expected tokens .250k, 2M, 1500000. or a share"):
        parse_capacities("2x", "--capacity")


def test_each_size_once():
    assert [capacity.text for capacity in parse_capacities("5%,2k,5.0%,2000", "--capacity")] == [
        "5.0%",
        "2000",
    ]


@pytest.mark.parametrize(
    ("num_tokens", "text"),
    [(0, "0"), (999, "999"), (1500, "1.5k"), (93_588_480, "93.6M"), (999_499, "999k"), (999_999, "999k"), (10**9, "1G")],
)  # fmt: skip
def test_tokens_text(num_tokens, text):
    assert tokens_text(num_tokens) == text


# ---- what it finds ----


def test_rows_and_notes(tmp_path, trace_path, capsys):
    result = replayed(
        tmp_path, trace_path, "--policy", "lru,importance", "--capacity", "5%,2k", "--host-capacity", "0,2x"
    )
    assert set(result) == {"rows", "notes", "config", "version"}
    assert result["version"] == __version__ and result["notes"] == {"agents": ["Generated."]}
    assert result["config"]["policy"]["ghost_factor"] == PolicyConfig().ghost_factor
    assert result["config"]["warmup"] == 0.2
    rows = result["rows"]
    assert all(set(row) == ROW_KEYS for row in rows)
    sizes = [
        (row["capacity_tokens"] // PAGE_TOKENS, row["host_capacity_tokens"] // PAGE_TOKENS) for row in rows
    ]
    pages = survey(agents()).num_distinct_pages * 5 // 100
    assert sizes == [
        size for size in [(pages, 0), (pages, 2 * pages), (125, 0), (125, 250)] for _ in range(2)
    ]
    assert [row["policy"] for row in rows] == ["lru", "importance"] * 4
    for row in rows:
        assert row["requests"] == 144 - 28
        assert row["hit_rate"] == row["hit_tokens"] / row["prompt_tokens"]
        assert row["device_hit_rate"] + row["host_hit_rate"] == pytest.approx(row["hit_rate"])
        assert row["host_capacity_tokens"] or row["host_hit_rate"] == 0
    out = capsys.readouterr().out
    assert "agents: 144 requests" in out and "note: Generated." in out
    assert "The first 28 requests fill the cache" in out
    assert out.count("*") >= 4 and "vs lru" in out


def test_one_cell_is_what_the_engine_counts():
    trace = agents()
    row = replay_one(trace, "importance", PolicyConfig(), 40, num_requests=144, num_warmup=28)
    assert (row.requests, row.host_hit_tokens, row.capacity_tokens) == (116, 0, 640)
    assert sum(prompt for prompt, _ in row.parts) == row.prompt_tokens
    assert sum(hits for _, hits in row.parts) == row.hit_tokens
    assert 0 < row.hit_rate < 1 and row.evicted_tokens > 0


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_a_cache_that_holds_all_finds_all_that_repeats(policy):
    trace = agents()
    num_pages = survey(trace).num_distinct_pages
    seen, hits = set(), 0
    for request in trace.requests():
        pages = request.page_ids.tolist()
        hits += sum(page in seen for page in pages)
        seen.update(pages)
    row = replay_one(trace, policy, PolicyConfig(), num_pages, num_requests=144)
    assert row.hit_tokens == hits * PAGE_TOKENS
    assert row.evicted_tokens in (0, None)


def test_lru_is_importance_that_ranks_by_recency():
    config = PolicyConfig(half_life_s=0, ghost_factor=0)
    for pages in (20, 60):
        rows = [
            replay_one(agents(), policy, config, pages, 2 * pages, num_requests=144)
            for policy in ("lru", "importance")
        ]
        assert rows[0].hit_tokens == rows[1].hit_tokens
        assert rows[0].evicted_tokens == rows[1].evicted_tokens


def test_no_policy_passes_belady(tmp_path, trace_path):
    policies = ",".join(POLICY_NAMES)
    result = replayed(tmp_path, trace_path, "--policy", policies, "--capacity", "3%,10%,30%")
    for start in range(0, len(result["rows"]), len(POLICY_NAMES)):
        *rows, bound = result["rows"][start : start + len(POLICY_NAMES)]
        assert bound["policy"] == "belady" and bound["evicted_tokens"] is None
        assert all(row["hit_tokens"] <= bound["hit_tokens"] for row in rows)


@pytest.mark.parametrize("pin_running", [False, True])
@pytest.mark.parametrize("num_requests", [1, 2, 5, 8])
def test_parts_of_a_short_trace(pin_running, num_requests):
    requests = list(agents().requests())[:num_requests]
    trace = Trace("t", PAGE_TOKENS, (), lambda: iter(requests))
    row = replay_one(
        trace, "importance", PolicyConfig(), 40, num_requests=num_requests, pin_running=pin_running
    )
    assert len(row.parts) == 4 and row.requests == num_requests
    assert sum(prompt for prompt, _ in row.parts) == sum(request.num_tokens for request in requests)


def test_pinned_parts_add_up():
    row = replay_one(
        agents(), "importance", PolicyConfig(), 60, num_requests=144, num_warmup=28, pin_running=True
    )
    assert row.requests == 116
    assert sum(prompt for prompt, _ in row.parts) == row.prompt_tokens
    assert sum(hits for _, hits in row.parts) == row.hit_tokens


def test_two_processes_find_what_one_does(tmp_path, trace_path):
    argv = (trace_path, "--policy", "lru,importance,random", "--capacity", "3%,10%", "--seed", "0,1")
    one, again, two = (without_seconds(replayed(tmp_path, *argv, "--jobs", jobs)) for jobs in ("1", "1", "2"))
    assert one == again == two
    assert [row["seed"] for row in one["rows"][:4]] == [0, 1, 0, 1]


def test_rates_are_null_where_nothing_was_asked_for(tmp_path):
    def requests():
        yield Request(0.0, np.array([1, 2], np.int64), 32)
        yield Request(1.0, np.array([], np.int64), 0)

    path = written(Trace("empty end", 16, (), requests), tmp_path / "t.jsonl")
    result = replayed(
        tmp_path, path, "--warmup", "0.5", "--capacity", "100%", "--policy", "lru,importance,belady"
    )
    for row in result["rows"]:
        assert (row["requests"], row["prompt_tokens"], row["hit_tokens"]) == (1, 0, 0)
        assert row["hit_rate"] is row["device_hit_rate"] is row["host_hit_rate"] is None


def test_traces_of_one_name_stay_apart(tmp_path, trace_path):
    (tmp_path / "b").mkdir()
    other = written(agents(seed=1), tmp_path / "b" / "agents.jsonl.gz")
    result = replayed(tmp_path, trace_path, other, "--capacity", "5%")
    assert list(dict.fromkeys(row["trace"] for row in result["rows"])) == ["agents", "agents#2"]
    assert set(result["notes"]) == {"agents", "agents#2"}


def test_several_seeds_show_their_spread(tmp_path, capsys):
    rows = [
        {"traj": [{"role": r, "content": f"{n} " * 50} for r in ("user", "assistant") * 3]} for n in range(9)
    ]
    path = rows_of(tmp_path / "talk.jsonl", rows)
    result = replayed(
        tmp_path, path, "--seed", "0,1,2", "--sessions", "6", "--hours", "0.1", "--capacity", "20%"
    )
    assert [row["seed"] for row in result["rows"]] == [0, 1, 2] * 2
    out = capsys.readouterr().out
    assert "± seeds" in out
    assert all(f"6 of 9 sessions, chosen by seed {seed}." in out for seed in range(3))


# ---- what it says ----


def test_options_that_are_wrong(fails, trace_path, tmp_path):
    names = ", ".join(POLICY_NAMES)
    sizes = "expected tokens (250k, 2M, 1500000) or a share of the distinct pages (5%)"
    for argv, line in {
        ("--policy", "lru,foo"): f"--policy: expected one of {names}, got 'foo'",
        ("--policy", ""): f"--policy: expected one of {names}, got ''",
        ("--capacity", "5 pages"): f"--capacity: {sizes}, got '5 pages'",
        ("--capacity", "5%,"): f"--capacity: {sizes}, got ''",
        ("--capacity", "-5%"): f"--capacity: {sizes}, got '-5%'",
        ("--capacity", "1e9"): f"--capacity: {sizes}, got '1e9'",
        ("--capacity", "0"): "--capacity: expected more than 0, got '0'",
        ("--capacity", "0.0%"): "--capacity: expected more than 0, got '0.0%'",
        ("--capacity", "101%"): "--capacity: expected at most 100% of the distinct pages, got '101%'",
        ("--capacity", "15"): "capacity 15: less than one page of 16 tokens (agents has 592 distinct pages)",
        ("--host-capacity", "nan"): f"--host-capacity: {sizes} or times the device (2x), got 'nan'",
        ("--warmup", "1"): "--warmup: expected a share from 0 to less than 1, got 1",
        ("--warmup", "-0.1"): "--warmup: expected a share from 0 to less than 1, got -0.1",
        ("--warmup", "nan"): "--warmup: expected a share from 0 to less than 1, got nan",
        ("--jobs", "0"): "--jobs: expected at least 1, got 0",
        ("--seed", "a"): "--seed: expected whole numbers, as in 0,1,2, got 'a'",
        ("--policy-config", "[]"): "--policy-config: expected a JSON object, got '[]'",
        ("--policy-config", '{"ghost_factor": -1}'): "ghost_factor: -1 is out of range; "
        "expected a number from 0 to 1000",
        ("--page-tokens", "32"): "page_tokens: expected 16 for this file, got 32",
        (
            "--sessions",
            "3",
        ): "sessions, hours: expected none for radiximp, which records when requests arrive",
        ("--hours", "0"): "hours: expected a number above 0, got 0.0",
        ("--policy", "belady", "--pin-running"): "--policy belady: bounds one tier only; "
        "leave out --host-capacity and --pin-running",
        ("--policy", "belady", "--host-capacity", "1x"): "--policy belady: bounds one tier only; "
        "leave out --host-capacity and --pin-running",
        ("--plot", tmp_path / "x.gif"): f"--plot: expected a name that ends in .pdf, .png, .svg, "
        f"got '{tmp_path / 'x.gif'}'",
    }.items():
        option, value, *rest = argv
        assert fails(trace_path, f"{option}={value}", *rest) == line
    assert fails(trace_path, "--policy-config={").startswith("--policy-config: expected JSON, got '{' (")
    assert fails(trace_path, '--policy-config={"half": 1}').startswith(
        "unknown key 'half'; expected one of score, "
    )


def test_files_that_are_wrong(fails, tmp_path, trace_path):
    missing = tmp_path / "missing.jsonl"
    assert fails(missing) == f"cannot read {missing}: No such file or directory"
    assert fails(trace_path, missing) == f"cannot read {missing}: No such file or directory"
    assert fails(tmp_path) == f"cannot read {tmp_path}: Is a directory"
    assert fails("/dev/null") == "cannot read /dev/null: a trace is read several times, so it must be a file"
    empty = rows_of(tmp_path / "empty.jsonl", [])
    assert fails(empty) == f"{empty}: no requests"
    header = {"radiximp_trace": 1, "page_tokens": 16, "name": "t", "notes": []}
    assert fails(rows_of(tmp_path / "head.jsonl", [header])) == f"{tmp_path / 'head.jsonl'}: no requests"
    good = {"t": 0, "tokens": 32, "new": [1, 2]}
    bad = rows_of(tmp_path / "bad.jsonl", [header, good, {**good, "tokens": "x"}])
    for jobs in ("1", "2"):  # the same from a process of its own
        line = f"{bad}:3: expected tokens: a whole number from 0, got 'x'"
        assert fails(bad, trace_path, "--jobs", jobs) == line
    pageless = rows_of(tmp_path / "pageless.jsonl", [header, {"t": 0, "tokens": 0, "new": []}])
    assert fails(pageless) == "t: no request has a page, so there is nothing to cache"


def test_a_result_never_replaces_the_trace_or_another_result(fails, trace_path, tmp_path):
    before = trace_path.read_bytes()
    assert fails(trace_path, "--json", trace_path) == f"--json: {trace_path} is the trace; name another file"
    both = tmp_path / "both.svg"
    line = f"--plot: {both} is the file of --json; name another file"
    assert fails(trace_path, "--json", both, "--plot", both) == line
    assert trace_path.read_bytes() == before and not both.exists()


def test_a_link_stays_and_what_it_names_is_replaced(trace_path, tmp_path):
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("old")
    target.chmod(0o600)
    link.symlink_to(target)
    assert main(["replay", str(trace_path), "--capacity", "5%", "--json", str(link)]) == 0
    assert link.is_symlink() and target.stat().st_mode & 0o777 == 0o600
    assert orjson.loads(target.read_bytes())["rows"]


def test_no_number_is_given_that_is_a_traces_own_name():
    sources = grid.named([grid.Source(Path("x"))] * 4, ["a", "a", "a#2", "a"])
    assert [source.name for source in sources] == ["a", "a#3", "a#2", "a#4"]


@pytest.mark.parametrize(
    ("option", "value"),
    [("--capacity", "9" * 23), ("--capacity", "9" * 5001), ("--seed", "9" * 23), ("--sessions", "9" * 23),
     ("--hours", "1e305"), ("--host-capacity", "9999x")],
)  # fmt: skip
def test_numbers_beyond_any_machine_are_told_before_the_run(fails, trace_path, option, value):
    assert fails(trace_path, option, value).startswith(f"{option}: expected ")


def test_requests_that_never_fit_are_told(trace_path, tmp_path, capsys):
    result = replayed(tmp_path, trace_path, "--capacity", "64", "--pin-running", "--policy", "lru")
    (notes,) = result["notes"].values()
    assert any("are larger than a device and count as not found" in note for note in notes)
    assert result["rows"][0]["hit_rate"] == 0


def test_options_that_a_record_would_ignore_are_refused(fails, tmp_path, capsys):
    header = {"format": "radiximp operations", "version": 1, "page_tokens": 1, "pool_tokens": 9, "config": {}}
    record = rows_of(tmp_path / "ops.jsonl", [header])
    assert main(["replay", str(record)]) == 0 and "all equal" in capsys.readouterr().out
    line = "a server's record is replayed as it was recorded: leave out --policy, --json"
    assert fails(record, "--policy", "lru", "--json", tmp_path / "x.json") == line
    assert fails(record, tmp_path / "none") == f"cannot read {tmp_path / 'none'}: No such file or directory"


def test_an_output_that_cannot_be_written_is_one_line(trace_path):
    command = [sys.executable, "-m", "radiximp.cli", "replay", str(trace_path), "--seed", "0,1"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    line = "radiximp replay: cannot write to stdout: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, line)
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, env=ascii_only)
    assert done.returncode == 0 and b"seeds" in done.stdout, done.stderr


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_results_that_cannot_be_written_are_told_before_the_run(fails, tmp_path, option):
    missing = tmp_path / "missing.jsonl"  # a run would complain of it first
    target = tmp_path / "no" / "x.png"
    assert fails(missing, option, target) == f"cannot write {target}: No such file or directory"
    assert fails(missing, option, tmp_path) == f"cannot write {tmp_path}: it is not a file"
    assert list(tmp_path.iterdir()) == []


def test_plot_without_matplotlib(fails, trace_path, tmp_path, monkeypatch):
    monkeypatch.setattr("radiximp.replay.plot.importlib.util.find_spec", lambda name: None)
    assert (
        fails(trace_path, "--plot", tmp_path / "x.png")
        == "--plot needs matplotlib: pip install 'radiximp[plot]'"
    )


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_plot(trace_path, tmp_path, ending):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"x.{ending}"
    argv = [str(trace_path)] * 2 + ["--capacity", "3%,10%", "--host-capacity", "0,2x", "--plot", str(path)]
    assert main(["replay", *argv]) == 0
    assert path.stat().st_size > 5000


def test_nothing_is_drawn_where_stderr_is_no_terminal(trace_path, capsys):
    assert main(["replay", str(trace_path), "--capacity", "5%"]) == 0
    assert capsys.readouterr().err == ""


def test_a_closed_pipe_does_not_cost_the_result(trace_path, tmp_path):
    result = tmp_path / "result.json"
    command = [*(sys.executable, "-m", "radiximp.cli", "replay", str(trace_path)), "--json", str(result)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    running.stdout.close()
    assert "Traceback" not in running.stderr.read()
    running.wait(timeout=60)
    assert len(orjson.loads(result.read_bytes())["rows"]) == 6


# ---- processes ----


def _dies(task, on_progress):
    os._exit(3)


def _doubles(task, on_progress):
    on_progress(1)
    return 2 * task


def test_results_keep_the_order_of_the_tasks():
    seen = []
    assert workers.run_all(_doubles, range(7), 3, seen.append) == [0, 2, 4, 6, 8, 10, 12]
    assert sum(seen) == 7


def test_a_worker_that_dies_is_told():
    with pytest.raises(workers.WorkerError, match="ended with code 3"):
        workers.run_all(_dies, [1, 2], 2, lambda amount: None)


def _children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="looks for child processes in /proc")
def test_interrupt(tmp_path):
    """^C reaches the whole process group, as from a terminal: no child, no file and no traceback is left."""
    trace_path = written(agents(300, 20), tmp_path / "t.jsonl")
    result = tmp_path / "result.json"
    command = [*(sys.executable, "-m", "radiximp.cli", "replay", str(trace_path)), "--json", str(result)]
    command += ["--jobs", "2", "--policy", ",".join(POLICY_NAMES), "--capacity", "1%,2%,3%,4%,5%,6%,7%,8%,9%"]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 60
    # two workers, and the process that multiprocessing starts beside them
    while len(children := _children(running.pid)) < 3 and time.monotonic() < deadline:
        assert running.poll() is None
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert (running.returncode, err) == (130, "radiximp replay: interrupted\n")
    while any(os.path.exists(f"/proc/{child}") for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert list(tmp_path.iterdir()) == [trace_path]


def test_row_without_requests():
    row = Row("t", "lru", 1, 0, 0, 0, 0, 0, 0, 0, 0.0)
    assert row.hit_rate is None and row.part_rates() == [] and row.as_json()["device_hit_rate"] is None
