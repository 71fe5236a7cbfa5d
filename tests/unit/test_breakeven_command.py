"""`radiximp breakeven`: every figure of its source with the command that makes it, the files, and what users get wrong."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import orjson
import pytest

from radiximp.cli import main
from tests.unit.small_traces import error_line

KEYS = {
    *("model", "gpu", "num_gpus", "tier", "bandwidth_gbps", "mfu", "bw_util"),
    *("crossing_tokens", "crossing_k", "min_bandwidth_gbps", "hbm_capacity_tokens"),
}
README = (Path(__file__).parents[2] / "README.md").read_text()
SECTION = README.partition("## Fetch or recompute")[2].partition("\n## ")[0]


@pytest.fixture
def rows(capsys):
    """tier -> the row that a command prints."""

    def read(command):
        assert main(["breakeven", *shlex.split(command), "--json", "-"]) == 0
        found = orjson.loads(capsys.readouterr().out)["rows"]
        assert all(set(row) == KEYS for row in found)
        return {row["tier"]: row for row in found}

    return read


@pytest.fixture
def fails(capsys):
    return lambda *argv: error_line(capsys, main, ["breakeven", *argv]).removeprefix("radiximp breakeven: ")


# ---- the source's figures, in K of 1,024 tokens, within 0.1 ----

AT_04, AT_09, AT_09_06 = "--mfu 0.4 --bw-util 0.7", "--mfu 0.9 --bw-util 0.7", "--mfu 0.9 --bw-util 0.6"
# section, command without --json -, tier, crossing: a number, "<8" or ">1024" as the source has it
CROSSINGS = [
    ("7", f"--model Qwen3-14B --gpu A100 --num-gpus 2 {AT_04}", "remote", 165.6),
    ("7", f"--model Qwen3.5-27B --gpu A100 --num-gpus 2 {AT_04}", "remote", 31.7),
    ("8", f"--model Qwen3-14B --gpu A100 --num-gpus 2 {AT_09}", "remote", 414.3),
    ("8", f"--model Qwen3.5-27B --gpu A100 --num-gpus 2 {AT_09}", "remote", 239.0),
    ("9", f"--model Qwen3-14B --gpu A100 {AT_04}", "remote", 66.1),
    ("9", f"--model Qwen3.5-27B --gpu A100 {AT_04}", "remote", "<8"),
    ("9", f"--model Qwen3-14B --gpu H100 {AT_04}", "remote", 282.0),
    ("9", f"--model Qwen3.5-27B --gpu H100 {AT_04}", "remote", 128.7),
    ("9", f"--model Qwen3-14B --gpu H200 {AT_04}", "remote", 282.0),
    ("9", f"--model Qwen3.5-27B --gpu H200 {AT_04}", "remote", 128.7),
    ("9", f"--model Qwen3-14B --gpu B100 {AT_04}", "remote", 524.7),
    ("9", f"--model Qwen3.5-27B --gpu B100 {AT_04}", "remote", 330.9),
    ("9", f"--model Qwen3-14B --gpu B200 {AT_04}", "remote", 684.1),
    ("9", f"--model Qwen3.5-27B --gpu B200 {AT_04}", "remote", 463.8),
    ("9", f"--model Qwen3-14B --gpu A100 {AT_09_06}", "remote", 227.8),
    ("9", f"--model Qwen3.5-27B --gpu A100 {AT_09_06}", "remote", 83.5),
    ("9", f"--model Qwen3-14B --gpu H100 {AT_09_06}", "remote", 794.5),
    ("9", f"--model Qwen3.5-27B --gpu H100 {AT_09_06}", "remote", 555.8),
    ("9", f"--model Qwen3-14B --gpu B100 {AT_09_06}", "remote", ">1024"),
    ("9", f"--model Qwen3.5-27B --gpu B100 {AT_09_06}", "remote", ">1024"),
    ("9", f"--model Qwen3-14B --gpu B200 {AT_09_06}", "remote", ">1024"),
    ("9", f"--model Qwen3.5-27B --gpu B200 {AT_09_06}", "remote", ">1024"),
    ("9", f"--model Qwen3-14B --gpu B100 {AT_09_06}", "ssd", 17.9),
    ("9", f"--model Qwen3-14B --gpu B200 {AT_09_06}", "ssd", 32.5),
    *(
        ("7", f"--model {model} --gpu A100 --num-gpus 2 {AT_04}", tier, "<8")
        for model in ("Qwen3-14B", "Qwen3.5-27B")
        for tier in ("hbm", "dram", "rdma", "ssd")
    ),
    *(
        ("9", f"--model {model} --gpu {gpu} {AT_09_06}", tier, "<8")
        for model in ("Qwen3-14B", "Qwen3.5-27B")
        for gpu in ("A100", "H100", "B100", "B200")
        for tier in ("hbm", "dram", "rdma", "ssd")
        if (model, gpu, tier) not in {("Qwen3-14B", "B100", "ssd"), ("Qwen3-14B", "B200", "ssd")}
    ),
]


@pytest.mark.parametrize(
    "section, command, tier, expected", CROSSINGS, ids=lambda value: str(value).replace("--", "")
)
def test_crossings_of_the_source(rows, section, command, tier, expected):
    row = rows(command)[tier]
    found = 0.0 if row["crossing_k"] is None else row["crossing_k"]
    assert found == (0.0 if row["crossing_tokens"] is None else row["crossing_tokens"] / 1024)
    if expected == "<8":
        assert found < 8
    elif expected == ">1024":
        assert found > 1024
    else:
        assert found == pytest.approx(expected, abs=0.1)


def test_the_tiers_are_those_of_the_source(rows):
    found = rows("--model Qwen3-14B --gpu A100 --num-gpus 2")
    assert {name: row["bandwidth_gbps"] for name, row in found.items()} == {
        "hbm": 4078, "dram": 120, "rdma": 50, "ssd": 10, "remote": 0.35
    }  # fmt: skip
    assert {row["mfu"] for row in found.values()} == {0.4}
    assert {row["bw_util"] for row in found.values()} == {0.7}


@pytest.mark.parametrize(
    "gpu, dense_k, hybrid_k",
    [
        ("A100", 512, 1280), ("H100", 512, 1280), ("H200", 902.4, 2256), ("B100", 1228.8, 3072),
        ("B200", 1228.8, 3072),
    ],
)  # fmt: skip
def test_full_hbm_capacities_of_the_source(rows, gpu, dense_k, hybrid_k):
    """Section 9. They hold with the sheets' GB read as GiB; as decimal GB, 80 GB would hold 476.8K tokens, not 512K."""
    for model, expected_k in (("Qwen3-14B", dense_k), ("Qwen3.5-27B", hybrid_k)):
        row = rows(f"--model {model} --gpu {gpu} --tier remote")["remote"]
        assert row["hbm_capacity_tokens"] / 1024 == pytest.approx(expected_k, abs=0.1)
    assert 80e9 / 163_840 / 1024 == pytest.approx(476.8, abs=0.1)


def test_a_sentence_of_the_source_that_its_own_table_does_not_bear(rows):
    """Section 9, conclusion 3: B100 and B200 "push Remote Block to 500-700K and above". Of the dense model only."""
    found = {
        (model, gpu): rows(f"--model {model} --gpu {gpu} {AT_04}")["remote"]["crossing_k"]
        for model in ("Qwen3-14B", "Qwen3.5-27B")
        for gpu in ("B100", "B200")
    }
    assert all(found["Qwen3-14B", gpu] > 500 for gpu in ("B100", "B200"))
    assert found["Qwen3.5-27B", "B100"] == pytest.approx(330.9, abs=0.1)
    assert found["Qwen3.5-27B", "B200"] == pytest.approx(463.8, abs=0.1)


# ---- options ----


def test_min_bandwidth_is_where_the_context_is_the_crossing(rows):
    base = "--model Qwen3-14B --gpu H100 --latency-ms 20"
    needed = rows(f"{base} --tier ssd --context 65536")["ssd"]["min_bandwidth_gbps"]
    row = rows(f"{base} --bandwidth-gbps {needed}")["custom"]
    assert row["bandwidth_gbps"] == needed
    assert row["crossing_tokens"] == pytest.approx(65536)


def test_a_latency_that_no_bandwidth_makes_up_for(rows, capsys):
    command = "--model Qwen3-14B --gpu H100 --context 16 --latency-ms 20"
    assert {row["min_bandwidth_gbps"] for row in rows(command).values()} == {None}
    assert main(["breakeven", *command.split()]) == 0
    assert "no bandwidth makes up for the latency" in capsys.readouterr().out


def test_fp8_halves_what_a_fetch_moves(rows):
    base = "--model Qwen3-14B --gpu B200 --tier remote"
    fp8, bf16 = (rows(f"{base} --kv-bytes {size}")["remote"] for size in (1, 2))
    assert fp8["hbm_capacity_tokens"] == 2 * bf16["hbm_capacity_tokens"]
    assert fp8["min_bandwidth_gbps"] == pytest.approx(bf16["min_bandwidth_gbps"] / 2)
    assert fp8["crossing_tokens"] < bf16["crossing_tokens"] / 2


def test_causal_attention_and_linear_state_come_in_when_asked_for(rows):
    base = "--model Qwen3.5-27B --gpu H100 --tier remote"
    plain, causal, state = (
        rows(base + more)["remote"]["crossing_k"] for more in ("", " --causal", " --linear-state")
    )
    assert causal == pytest.approx(2 * plain)
    assert plain < state < plain + 5


def test_own_tiers_and_names_in_either_case(rows):
    found = rows("--model qwen3-14b --gpu h200 --tier SSD,nfs=1.2,remote")
    assert list(found) == ["ssd", "nfs", "remote"]
    assert found["nfs"]["bandwidth_gbps"] == 1.2
    assert found["nfs"]["model"] == "Qwen3-14B" and found["nfs"]["gpu"] == "H200"


def test_a_model_from_its_config(rows, tmp_path):
    config = {
        "hidden_act": "silu", "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 17408,
    }  # fmt: skip
    (tmp_path / "config.json").write_bytes(orjson.dumps(config))
    row = rows(f"--model {tmp_path}/config.json --gpu A100 --num-gpus 2")["remote"]
    assert row["model"] == tmp_path.name
    # 13.2e9 weights in the layers where the name says 14: (14.0 - 13.21) / (2 x 40 x 128 x 40) later, 1.9K.
    assert row["crossing_k"] == pytest.approx(165.6 + 1.9, abs=0.1)


# ---- what is printed and written ----


def test_the_table(capsys):
    assert main(["breakeven", "--model", "Qwen3-14B", "--gpu", "A100", "--num-gpus", "2"]) == 0
    out = capsys.readouterr().out
    assert "Qwen3-14B on 2 x A100: MFU 0.4, bandwidth utilisation 0.7, BF16 KV\n" in out
    assert "1.526 GiB per 10,000; 16 GiB hold 104,857 tokens, all HBM 1,024K" in out
    assert "the model's limit is 40K" in out
    assert re.search(r"remote +0\.35 +165\.6K +21\.9 s +7\.2 s", out)
    assert re.search(r"ssd +10 +0K +767 ms +7\.2 s", out)


def test_the_title_says_what_is_assumed(capsys):
    argv = ["--linear-state", "--causal", "--kv-bytes=1", "--latency-ms=2.5", "--mfu=0.5", "--bw-util=1"]
    assert main(["breakeven", "--model=Qwen3.5-27B", "--gpu=B100", "--num-gpus=4", *argv]) == 0
    assert capsys.readouterr().out.splitlines()[0] == (
        "Qwen3.5-27B on 4 x B100: MFU 0.5, bandwidth utilisation 1, FP8 KV and linear state, "
        "causal attention at half, latency 2.5 ms"
    )


def test_files_hold_what_is_printed(tmp_path, capsys):
    argv = ["breakeven", "--model", "Qwen3.5-27B", "--gpu", "B200", "--latency-ms", "5", "--linear-state"]
    path, figure = tmp_path / "rows.json", tmp_path / "figure.png"
    assert main([*argv, "--json", str(path), "--plot", str(figure)]) == 0
    assert "Qwen3.5-27B on 1 x B200" in capsys.readouterr().out
    assert main([*argv, "--json", "-"]) == 0
    written, printed = orjson.loads(path.read_bytes()), orjson.loads(capsys.readouterr().out)
    assert written == printed
    assert written["config"] == {
        "context_tokens": 32768, "kv_bytes_per_element": 2, "latency_s": 0.005, "is_causal": False,
        "has_linear_state": True,
    }  # fmt: skip
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert {entry.name for entry in tmp_path.iterdir()} == {"rows.json", "figure.png"}


@pytest.mark.parametrize(
    "more",
    [
        ["--tier", "ssd"],
        ["--bandwidth-gbps", "1e-6", "--latency-ms", "1000000"],
        ["--bandwidth-gbps", "1000000"],
        ["--tier", "a$b=1,a$c=1.001,hbm,dram,rdma,ssd,remote,tape_=0.001"],
    ],
)
def test_figures_of_extreme_tiers(tmp_path, more):
    figure = tmp_path / "figure.svg"
    argv = ["breakeven", "--model", "Qwen3-14B", "--gpu", "A100", "--plot", str(figure), *more]
    assert main(argv) == 0
    assert figure.stat().st_size > 10_000


# ---- what users get wrong ----

GOOD = {"--model": "Qwen3-14B", "--gpu": "A100"}


@pytest.mark.parametrize(
    "flag, value, message",
    [
        ("--model", "GPT-9", "--model: expected one of Qwen3-14B, Qwen3.5-27B, or the path of a config.json, got 'GPT-9'"),
        ("--model", "x" * 5000, f"--model: expected one of Qwen3-14B, Qwen3.5-27B, or the path of a config.json, got '{'x' * 80}'"),
        ("--gpu", "V100", "--gpu: expected one of A100, H100, H200, B100, B200, got 'V100'"),
        ("--num-gpus", "0", "--num-gpus: expected a whole number from 1 to 1024, got '0'"),
        ("--num-gpus", "1.5", "--num-gpus: expected a whole number from 1 to 1024, got '1.5'"),
        ("--tier", "tape", "--tier: expected hbm, dram, rdma, ssd, remote, or NAME=GB/s of your own (a short name), got 'tape'"),
        ("--tier", "ssd,", "--tier: expected hbm, dram, rdma, ssd, remote, or NAME=GB/s of your own (a short name), got ''"),
        ("--tier", "=5", "--tier: expected hbm, dram, rdma, ssd, remote, or NAME=GB/s of your own (a short name), got '=5'"),
        ("--tier", "nfs=fast", "--tier: expected a number from 1e-06 to 1e+06, got 'fast'"),
        ("--tier", "ssd,SSD", "--tier: expected each name once, got 'ssd,SSD'"),
        ("--tier", "a=1,b=1,c=1,d=1,e=1,f=1,g=1,h=1,i=1", "--tier: expected at most 8, got 9"),
        ("--bandwidth-gbps", "0", "--bandwidth-gbps: expected a number from 1e-06 to 1e+06, got '0'"),
        ("--bandwidth-gbps", "nan", "--bandwidth-gbps: expected a number from 1e-06 to 1e+06, got 'nan'"),
        ("--mfu", "0", "--mfu: expected a number from 0.001 to 1, got '0'"),
        ("--mfu", "40%", "--mfu: expected a number from 0.001 to 1, got '40%'"),
        ("--bw-util", "1.01", "--bw-util: expected a number from 0.001 to 1, got '1.01'"),
        ("--kv-bytes", "4", "--kv-bytes: expected a whole number from 1 to 2, got '4'"),
        ("--latency-ms", "-1", "--latency-ms: expected a number from 0 to 1e+06, got '-1'"),
        ("--context", "32k", "--context: expected a whole number from 1 to 1e+09, got '32k'"),
        ("--plot", "figure.gif", "--plot: expected a name that ends in .pdf, .png, .svg, got 'figure.gif'"),
        ("--json", "no-such-folder/rows.json", "cannot write no-such-folder/rows.json: No such file or directory"),
    ],
)  # fmt: skip
def test_a_value_that_is_wrong(fails, flag, value, message):
    argv = [f"{name}={text}" for name, text in {**GOOD, flag: value}.items()]
    assert fails(*argv) == message


def test_options_that_do_not_go_together(fails, tmp_path):
    good = [f"{name}={text}" for name, text in GOOD.items()]
    assert fails(*good, "--tier=ssd", "--bandwidth-gbps=1") == "--tier and --bandwidth-gbps: give one of them"
    assert fails(*good, "--linear-state") == "--linear-state: Qwen3-14B has no linear-attention layers"
    path = tmp_path / "one.png"
    expected = f"--plot: {path} is the file of --json; name another file"
    assert fails(*good, "--json", path, "--plot", path) == expected
    assert not list(tmp_path.iterdir())


def test_models_that_are_no_config(fails, tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b"{}")
    assert fails("--model", path, "--gpu", "A100") == f"{path}: missing key 'hidden_act'"
    assert fails("--model", "/dev/null", "--gpu", "A100") == "cannot read /dev/null: it is not a file"
    path.unlink()
    expected = f"cannot read {path}: No such file or directory"
    assert fails("--model", tmp_path, "--gpu", "A100") == expected


# ---- the README ----


def test_the_readmes_command_prints_what_stands_under_it(capsys):
    command, printed = re.search(r"^radiximp (breakeven .*)\n((?:.|\n)*?)```", SECTION, re.MULTILINE).groups()
    assert main(shlex.split(command)) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert [line.rstrip() for line in printed.splitlines()] == lines
