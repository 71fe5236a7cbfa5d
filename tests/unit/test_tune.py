"""`radiximp tune`: knees, noise and verdicts on made-up rows, and the command on a small trace."""

from __future__ import annotations

import math

import orjson
import pytest

from radiximp.cli import main
from radiximp.config import PolicyConfig
from radiximp.replay import tuning
from radiximp.replay.run import Row
from tests.unit.small_traces import agents, error_line, written


@pytest.fixture
def trace_path(tmp_path):
    return written(agents(), tmp_path / "agents.jsonl")


@pytest.fixture
def fails(capsys):
    return lambda *argv: error_line(capsys, main, ["tune", *argv]).removeprefix("radiximp tune: ")


def row(rate, *part_rates):
    """100,000 prompt tokens; the quarters' rates are the whole's unless given."""
    parts = [(25_000, round(25_000 * part)) for part in part_rates or [rate] * 4]
    hits = sum(hit for _, hit in parts)
    return Row("t", "importance", 1000, 0, 10, 100_000, hits, 0, 0, 0, 0.0, tuple(parts))


# ---- knee ----


def test_knee_is_farthest_above_the_chord_on_log_capacity():
    capacities = [1, 10, 100, 1000]
    assert tuning.knee(capacities, [0.0, 0.8, 0.9, 1.0]) == 1
    assert tuning.knee(capacities, [0.0, 0.3, 0.9, 1.0]) == 2
    # On a linear axis the bend would be at 10; on a logarithmic one this is a straight line.
    assert tuning.knee(capacities, [0.0, 1 / 3, 2 / 3, 1.0]) is None


@pytest.mark.parametrize(
    "rates", [[0.1, 0.9], [0.5, 0.5, 0.5], [0.5, 0.4, 0.3], [0.0, 0.01, 0.1, 1.0], [None, None, None], []]
)
def test_no_knee(rates):
    assert tuning.knee([2.0**n for n in range(len(rates))], rates) is None


# ---- settings ----


def test_variants_are_a_factor_up_and_down_one_at_a_time():
    config = PolicyConfig(law_half_life_s=7200, prior_spans=1, burst_s=0.25, ghost_factor=4, trim_tokens=64)
    found = list(tuning.variants(config, 16))
    assert [(key, value) for key, value, _ in found] == [
        *(("law_half_life_s", 1800), ("law_half_life_s", 28800), ("prior_spans", 0.25), ("prior_spans", 4)),
        *(("burst_s", 0.0625), ("burst_s", 1), ("ghost_factor", 1), ("ghost_factor", 16)),
        *(("trim_tokens", 16), ("trim_tokens", 256)),
    ]
    for key, value, changed in found:
        assert getattr(changed, key) == value
        assert changed != config


def test_variants_stay_in_range_and_leave_out_what_changes_nothing():
    assert [
        value for key, value, _ in tuning.variants(PolicyConfig(trim_tokens=64), 512) if key == "trim_tokens"
    ] == []
    config = PolicyConfig(ghost_factor=0, law_half_life_s=100, prior_spans=1000, burst_s=0.25)
    found = [(key, value) for key, value, _ in tuning.variants(config, 64)]
    assert ("law_half_life_s", 60) in found and ("prior_spans", 250) in found
    assert not {key for key, _ in found} & {"ghost_factor"}
    assert ("prior_spans", 4000) not in found
    assert {key for key, *_ in tuning.variants(PolicyConfig(score="lrfu"), 64)} == {
        *("half_life_s", "max_uses", "burst_s", "ghost_factor", "trim_tokens")
    }
    assert list(tuning.variants(PolicyConfig(half_life_s=0), 64)) == []


# ---- noise ----


def test_with_one_seed_the_noise_is_the_spread_over_the_quarters():
    base = [row(0, 0.2, 0.3, 0.3, 0.4)]
    steady = tuning.judged("k", 4, 1, [row(0, 0.22, 0.32, 0.33, 0.43)], base)
    assert steady.gain == pytest.approx(0.025) and steady.noise == pytest.approx(0.01)
    assert steady.samples == pytest.approx((0.02, 0.02, 0.03, 0.03)) and steady.is_worth_changing
    lucky = tuning.judged("k", 4, 1, [row(0, 0.32, 0.28, 0.32, 0.4)], base)
    assert lucky.gain == pytest.approx(0.03) and not lucky.is_worth_changing


def test_where_nothing_depends_on_the_seed_the_noise_is_that_of_one():
    base, changed = row(0, 0.2, 0.3, 0.3, 0.4), row(0, 0.32, 0.28, 0.32, 0.4)
    one = tuning.judged("k", 4, 1, [changed], [base])
    assert tuning.judged("k", 4, 1, [changed] * 3, [base] * 3) == one and not one.is_worth_changing


def test_with_seeds_the_noise_is_the_spread_of_the_paired_gains():
    base = [row(0.30), row(0.50), row(0.40)]  # seeds differ by far more than the setting does
    steady = tuning.judged("k", 4, 1, [row(0.33), row(0.53), row(0.44)], base)
    assert steady.gain == pytest.approx(0.1 / 3) and steady.noise == pytest.approx(0.01)
    assert steady.is_worth_changing
    assert not tuning.judged("k", 4, 1, [row(0.36), row(0.50), row(0.40)], base).is_worth_changing


def test_a_sure_but_tiny_gain_is_not_worth_it():
    verdict = tuning.judged("k", 4, 1, [row(0.304)], [row(0.3)])
    assert verdict.noise == 0 and 0 < verdict.gain < tuning.MIN_GAIN and not verdict.is_worth_changing


def test_nothing_asked_for_judges_nothing():
    nothing = Row("t", "importance", 1, 0, 0, 0, 0, 0, 0, 0, 0.0)
    verdict = tuning.judged("k", 4, 1, [nothing], [nothing])
    assert verdict.gain is verdict.noise is None and not verdict.is_worth_changing


def test_conclusion():
    small = tuning.Verdict("burst_s", 1, 0.25, 0.002, 0.0, (0.002, 0.002))
    worse = tuning.Verdict("burst_s", 4, 0.25, -0.1, 0.0, (-0.1, -0.1))
    large = tuning.Verdict("ghost_factor", 16, 4, 0.03, 0.01, (0.025, 0.035))
    unknown = tuning.Verdict("burst_s", 1, 0.25, None, None, ())
    assert tuning.conclusion([worse, small]) == "the defaults are within 0.2 points of the best of 2 variants"
    assert tuning.conclusion([worse]) == "the defaults are within 0.0 points of the one variant"
    assert tuning.conclusion([small, large]) == (
        "worth changing: ghost_factor 4 -> 16 (+3.0 points, noise 1.0); confirm it on another trace"
    )
    assert tuning.conclusion([unknown]).startswith("too little was asked for")
    assert tuning.conclusion([worse, small], "the settings given are").startswith(
        "the settings given are within 0.2"
    )
    assert tuning.conclusion([]) == "the configuration ranks as lru does: there is nothing to tune"


# ---- the command ----


def tuned(tmp_path, *argv):
    path = tmp_path / "result.json"
    assert main(["tune", *map(str, argv), "--json", str(path)]) == 0
    return orjson.loads(path.read_bytes())


def without_seconds(result):
    return {**result, "rows": [{**row, "seconds": None} for row in result["rows"]]}


def test_plan(tmp_path, trace_path, capsys):
    result = tuned(tmp_path, trace_path, "--prefill-tokens-per-s", "1000")
    assert set(result) == {
        "rows",
        "knee_capacity_tokens",
        "settings",
        "conclusion",
        "notes",
        "config",
        "version",
    }
    rows = result["rows"]
    assert all(row["saved_prefill_s"] == row["hit_tokens"] / 1000 for row in rows)
    devices = list(dict.fromkeys(row["capacity_tokens"] for row in rows))
    assert len(devices) == 8 and devices == sorted(devices)
    assert {row["policy"] for row in rows if row["host_capacity_tokens"] == 0} == {
        "lru",
        "importance",
        "belady",
    }
    assert {row["policy"] for row in rows if row["host_capacity_tokens"]} == {"lru", "importance"}
    hosts = {
        row["host_capacity_tokens"] // devices[0] for row in rows if row["capacity_tokens"] == devices[0]
    }
    assert hosts == {0, 1, 2, 4}
    assert {row["host_capacity_tokens"] for row in rows if row["capacity_tokens"] == devices[-1]} == {0}
    at_all = [row for row in rows if row["capacity_tokens"] == devices[-1]]
    assert len({row["hit_tokens"] for row in at_all}) == 1
    assert result["knee_capacity_tokens"] in devices
    assert {setting["setting"] for setting in result["settings"]} >= {"ghost_factor", "burst_s"}
    assert not math.isnan(result["settings"][0]["gain"])
    out = capsys.readouterr().out
    assert "knee (<)" in out and result["conclusion"] in out and "note: Generated." in out


def test_two_processes_find_what_one_does(tmp_path, trace_path):
    argv = (trace_path, "--device", "3%,20%,100%", "--host", "0,1x", "--seed", "0,1")
    one, two = (without_seconds(tuned(tmp_path, *argv, "--jobs", jobs)) for jobs in ("1", "2"))
    assert one == two
    # A trace with recorded times does not depend on the seed: the samples are the quarters.
    assert all(len(setting["samples"]) == 4 for setting in one["settings"])


def test_pinned_requests_have_no_bound(tmp_path, trace_path):
    result = tuned(tmp_path, trace_path, "--pin-running", "--device", "20%,40%", "--host", "2x,1x")
    assert {row["policy"] for row in result["rows"]} == {"lru", "importance"}
    assert result["knee_capacity_tokens"] is None


def test_a_small_trace_leaves_out_sizes_under_a_page(tmp_path):
    path = written(agents(2, 1), tmp_path / "t.jsonl")
    devices = {row["capacity_tokens"] for row in tuned(tmp_path, path)["rows"]}
    assert len(devices) < 8 and min(devices) == 16


def test_options_that_are_wrong(fails, trace_path, tmp_path):
    assert fails(trace_path, "--device", "0") == "--device: expected more than 0, got '0'"
    assert fails(trace_path, "--device", "200%").startswith("--device: expected at most 100%")
    assert fails(trace_path, "--device", "1").startswith("capacity 1: less than one page of 16 tokens")
    assert fails(trace_path, "--host", "2y").startswith("--host: expected tokens")
    for rate in ("0", "-1", "inf", "nan"):
        line = f"--prefill-tokens-per-s: expected more than 0, got {float(rate):g}"
        assert fails(trace_path, f"--prefill-tokens-per-s={rate}") == line
    missing = tmp_path / "missing"
    assert fails(missing) == f"cannot read {missing}: No such file or directory"
    assert fails(missing, "--json", tmp_path / "no" / "x") == (
        f"cannot write {tmp_path / 'no' / 'x'}: No such file or directory"
    )
    assert fails(trace_path, "--warmup=1").startswith("--warmup: expected a share")


@pytest.mark.parametrize("options", [(), ("--pin-running", "--host", "1x,2x")])
def test_plot(trace_path, tmp_path, options):
    pytest.importorskip("matplotlib")
    path = tmp_path / "plan.png"
    assert main(["tune", str(trace_path), "--device", "5%,20%,100%", *options, "--plot", str(path)]) == 0
    assert path.stat().st_size > 10_000
