"""The tables of the replay: every part on small generated traces, resumed, and what a verdict says."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from eval.replay_tables import plan, runner, tables, verdicts
from eval.replay_tables.__main__ import main
from eval.replay_tables.variants import FEATURES, VARIANTS, applied
from eval.replay_tables.workloads import AGENTS
from radiximp.config import PolicyConfig
from radiximp.policy import reuse_law
from radiximp.policy.history import NodeHistory
from radiximp.policy.registry import POLICIES, make_named_policy


def test_every_part_writes_rows_and_a_table_and_does_not_run_them_again(tmp_path, capsys, monkeypatch):
    argv = ["--smoke", "--json-dir", str(tmp_path), "--part", "adversarial,ablation,sensitivity"]
    assert main(argv) == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(before) == {f"{part}.{end}" for part in argv[-1].split(",") for end in ("json", "md")}
    monkeypatch.setattr(runner, "run_task", lambda task: pytest.fail(f"{task} ran again"))
    assert main(argv) == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    for part in ("adversarial", "ablation"):
        document = runner.read_part(part, tmp_path)
        assert len(document["rows"]) == document["cells"]
    assert "| loop | " in capsys.readouterr().out


def test_a_cut_run_says_how_much_it_left_out(tmp_path, capsys):
    argv = ["--smoke", "--json-dir", str(tmp_path), "--part", "adversarial"]
    assert main([*argv, "--minutes", "-1"]) == 0
    assert "0 of 18 cells, 18 left out" in capsys.readouterr().out


def test_other_code_does_not_take_over_old_cells(tmp_path, monkeypatch):
    tasks = plan.tasks_of("adversarial", 1, is_smoke=True)[:1]
    runner.run_part("adversarial", tasks, tmp_path, 1, float("inf"))
    assert runner._known_rows(tmp_path)
    monkeypatch.setattr(runner, "version_of", lambda is_variant=False: "other")
    assert not runner._known_rows(tmp_path)


def test_what_a_version_leaves_out_is_not_used_by_a_cell():
    code = "import sys, eval.replay_tables.workloads, radiximp.replay.run; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    used = {name.rpartition(".")[2] + ".py" for name in loaded.split() if name.startswith("radiximp.replay.")}
    assert "tree.py" in used
    # `run` and `survey` read no file through it.
    assert used & runner.NOT_IN_A_CELL == {"files.py"}


def test_a_variant_leaves_nothing_behind():
    before = POLICIES["importance"], reuse_law.gittins_index
    for name in VARIANTS:
        with applied(name):
            assert POLICIES["importance"] != before[0]
        assert (POLICIES["importance"], reuse_law.gittins_index) == before


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_is_another_policy(name):
    """A piece that is taken away is gone: no class knows the feature, or the curves are others."""
    seen, curves = {}, {}
    for variant in ("", name):
        with applied(variant):
            policy = make_named_policy("importance", PolicyConfig(), 0)
            use_in_every_way(policy)
        classes = [features for features in policy.law.evidence(policy.now_s)[0] if features]
        seen[variant] = [set(values) for values in zip(*classes, strict=True)]
        curves[variant] = [policy.curve(number).values for number in range(len(classes))]
    if name.startswith("without "):
        place = FEATURES.index(name.removeprefix("without "))
        assert len(seen[""][place]) > 1 and seen[name][place] == {0}
        assert all(len(seen[name][other]) > 1 for other in range(len(FEATURES)) if other != place)
    elif name == "no guard":
        assert not policy.guard.is_tripped and "is_tripped" in vars(type(policy.guard))
    else:
        assert curves[name] != curves[""]


def use_in_every_way(policy) -> None:
    """Nodes that differ in every feature of their class."""
    rng = random.Random(0)
    histories, now_s = [NodeHistory(0.0, 0) for _ in range(20)], 0.0
    for tick in range(400):
        now_s += rng.expovariate(1 / 10)
        path = [(rng.choice(histories), 64)]
        policy.record_uses(path, now_s, tick)
        policy.record_end(path, rng.choice(["", "tool_use", "end_turn"]), rng.choice([0, 100, 5000]), now_s)
    policy.advance(now_s)


def test_traces_that_are_absent_are_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RADIXIMP_TRACES", str(tmp_path))
    assert main(["--part", "main", "--json-dir", str(tmp_path / "results")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: no mooncake_conversation.jsonl.gz in {tmp_path}: set RADIXIMP_TRACES")
    assert error.count("\n") == 1


def rates(lru: float, ours: float, bound: float) -> verdicts.Rates:
    return {"lru": {0: lru}, "importance": {0: ours}, "belady": {0: bound}}


@pytest.mark.parametrize(
    ("cell", "found", "said"),
    [
        (("mooncake", "1%"), rates(0.05, 0.1120, 0.25), ("≥ 11.2", "PASS")),
        (("mooncake", "1%"), rates(0.05, 0.1110, 0.25), ("≥ 11.2", "MISS (-0.1)")),
        (("mooncake", "30%"), rates(0.36, 0.3598, 0.38), ("≥ lru", "MISS (-0.02 to lru)")),
        ((AGENTS, "1M"), rates(0.50, 0.60, 0.75), ("gap ≥ 40 %", "PASS")),
        ((AGENTS, "1M"), rates(0.50, 0.59, 0.75), ("gap ≥ 40 %", "MISS (-4.0 %)")),
    ],
)
def test_a_verdict_names_the_bar_and_what_is_missing(cell, found, said):
    assert verdicts.verdict(*cell, found) == said


def test_a_seed_counts_when_every_policy_ran():
    rows = [
        {"workload": "loop", "capacity": "15%", "host": "0", "write_policy": "write_through", "policy": policy, "seed": seed, "hit_rate": 0.5}
        for policy, seed in (("lru", 0), ("importance", 0), ("belady", 0), ("lru", 1))
    ]  # fmt: skip
    (found,) = verdicts.grouped(rows)["loop"].values()
    assert found == rates(0.5, 0.5, 0.5)
    assert tables.adversarial_summary({"rows": rows})[-1] == "| loop | +0.0 | +0.00 | PASS |"
