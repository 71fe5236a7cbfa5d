"""What the doctor says of a report, and what a bundle holds. The reports have the shape of `GET /radiximp/report`."""

from __future__ import annotations

import copy
import io
import json
import tarfile
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from radiximp.cli import main
from radiximp.cli.bundle import archive, contents
from radiximp.diagnosis import diagnose, exit_code

RANK = {
    "dp_rank": 0,
    "policy": "importance",
    "tree_core": "ImportanceTreeCore",
    "version": "1",
    "uses": 10,
    "scorer_calls": 20,
    "evictions": {"device": 5, "host": 0},
    "config": {
        "importance_scorer": "softmax",
        "importance_weight": 1.0,
        "half_life_s": 300.0,
        "ghost_factor": 4.0,
    },
    "importance": {"scorer": "softmax", "observed_layers": [3, 11], "backend": "FlashInferAttnBackend"},
    "guard": {"is_tripped": False, "recent_loss_to_lru": -0.02},
    "pinned_tokens": 0,
    "pin_budget_tokens": 1000,
    "what_if": {"rate": 0.01, "sizes": [{"scale": 1.0, "hit_rate": 0.5}, {"scale": 2.0, "hit_rate": 0.52}]},
}
ARGS = {
    "dp_size": 1,
    "enable_hierarchical_cache": True,
    "hicache_write_policy": "write_through",
    "hicache_ratio": 2.0,
    "enable_metrics": True,
    "enable_cache_report": True,
    "host": "127.0.0.1",
}
REPORT = {"versions": {"sglang": "0.5.23"}, "server_args": ARGS, "ranks": [RANK]}


def with_changes(rank: dict | None = None, args: dict | None = None) -> dict:
    report = copy.deepcopy(REPORT)
    report["ranks"][0].update(rank or {})
    report["server_args"].update(args or {})
    return report


def test_a_sound_server_is_ok_and_says_what_is_on():
    findings = diagnose(REPORT)
    assert {finding.level for finding in findings} == {"ok"} and exit_code(findings) == 0
    assert "policy importance on tree core ImportanceTreeCore" in findings[0].what
    assert "layers 3, 11 of FlashInferAttnBackend" in findings[1].what


def test_a_server_that_has_just_started_is_sound():
    fresh = {**RANK, "uses": 1, "scorer_calls": 0, "evictions": {"device": 0, "host": 0}}
    assert exit_code(diagnose({**REPORT, "ranks": [fresh]})) == 0


@pytest.mark.parametrize(
    "rank, args, level, text",
    [
        ({"scorer_calls": 0}, {}, "error", "none was ever ranked"),
        ({}, {"dp_size": 2}, "error", "1 of 2 data-parallel ranks answered"),
        (
            {"importance": {"scorer": "softmax", "observed_layers": [], "not_observed_because": "the model uses MLA"}},
            {}, "warning", "the model uses MLA",
        ),
        ({"importance": {"scorer": "structural", "observed_layers": []}}, {}, "note", "structural asks for"),
        ({"guard": {"is_tripped": True, "recent_loss_to_lru": 0.031}}, {}, "warning", "lost 3.1% of prompt tokens"),
        ({"pinned_tokens": 990}, {}, "warning", "990 of 1,000"),
        ({}, {"hicache_ratio": 1.0}, "warning", "--hicache-ratio 1: under write_through"),
        ({}, {"enable_hierarchical_cache": False}, "note", "no host tier"),
        ({}, {"page_size": 128}, "note", "--page-size 128"),
        ({}, {"enable_metrics": False}, "note", "no metrics"),
        ({}, {"enable_cache_report": False}, "note", "how many tokens were cached"),
        ({}, {"enable_session_radix_cache": True}, "note", "session"),
        ({}, {"host": "0.0.0.0"}, "warning", "without a key"),
        ({"config": {**RANK["config"], "importance_scorer": "shuffled"}}, {}, "warning", "control of an experiment"),
        ({"config": {**RANK["config"], "half_life_s": 0}}, {}, "warning", "as lru does"),
        ({"config": {**RANK["config"], "ghost_factor": 0}}, {}, "warning", "ghost_factor 0"),
        ({"config": {**RANK["config"], "importance_weight": 0}}, {}, "note", "importance_weight is 0"),
        (
            {"what_if": {"sizes": [{"scale": 1.0, "hit_rate": 0.2}, {"scale": 2.0, "hit_rate": 0.6}]}},
            {}, "note", "lru would hit 60%",
        ),
    ],
)  # fmt: skip
def test_each_finding_has_its_level_and_names_the_value(rank, args, level, text):
    findings = diagnose(with_changes(rank, args))
    (found,) = [finding for finding in findings if finding.level != "ok"]
    assert found.level == level and text in found.what
    assert exit_code(findings) == {"note": 0, "warning": 1, "error": 2}[level]


def test_a_key_is_enough_for_an_open_address():
    assert exit_code(diagnose(with_changes(args={"host": "0.0.0.0", "admin_api_key": "[removed]"}))) == 0


def test_write_back_needs_no_larger_host():
    assert (
        exit_code(diagnose(with_changes(args={"hicache_ratio": 1.0, "hicache_write_policy": "write_back"})))
        == 0
    )


def test_ranks_that_differ_are_an_error():
    report = with_changes(args={"dp_size": 2})
    report["ranks"].append(
        {**copy.deepcopy(RANK), "dp_rank": 1, "config": {**RANK["config"], "ghost_factor": 8.0}}
    )
    assert "different configurations" in next(f.what for f in diagnose(report) if f.level == "error")


@contextmanager
def answering(status: int, body: bytes):
    """A real HTTP server that answers everything alike."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    "status, body, text",
    [
        (404, b'{"detail": "Not Found"}', "the HTTP process does not know /radiximp/"),
        (
            500,
            b'{"detail": "radiximp is not active in the scheduler of data-parallel ranks [1]"}',
            "ranks [1]",
        ),
    ],
)
def test_a_server_without_the_policy_is_exit_code_2(status, body, text, capsys):
    with answering(status, body) as url:
        assert main(["doctor", "--url", url]) == 2
        shown = capsys.readouterr().out
        assert "ERROR" in shown and text in shown and "NOT on everywhere" in shown
        assert main(["doctor", "--url", url, "--json"]) == 2
        assert json.loads(capsys.readouterr().out)["exit_code"] == 2


def test_a_sound_answer_is_exit_code_0_and_a_warning_1(capsys):
    with answering(200, json.dumps(REPORT).encode()) as url:
        assert main(["doctor", "--url", url]) == 0
        assert '"ghost_factor": 4.0' in capsys.readouterr().out
    with answering(200, json.dumps(with_changes(args={"hicache_ratio": 1.0})).encode()) as url:
        assert main(["doctor", "--url", url]) == 1
        assert "-> --hicache-ratio 2 or more" in capsys.readouterr().out


def test_no_server_is_exit_code_2_in_one_line(capsys):
    assert main(["doctor", "--url", "http://127.0.0.1:9"]) == 2
    assert "is the server up?" in capsys.readouterr().err


def test_a_bundle_has_its_files_and_no_secret():
    report = with_changes(
        args={
            "api_key": "top-secret-1",
            "launch_command": ["x", "--api-key", "top-secret-1"],
            "model_path": "https://me:hunter22@models.example/llama?token=abc123",
        }
    )
    files = contents(
        report, 'sglang:x{model_name="top-secret-1"} 1\n', "http://u:hunter33@h:1", ["key-of-the-client"]
    )
    assert set(files) == {"versions.json", "server_args.json", "stats.json", "doctor.json", "metrics.txt"}
    args = json.loads(files["server_args.json"])
    assert args["api_key"] == "[removed]" and args["hicache_ratio"] == 2.0
    packed = archive(files)
    assert packed == archive(files)
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        texts = {member.name: tar.extractfile(member).read().decode() for member in tar}
    assert set(texts) == {f"radiximp-bundle/{name}" for name in files}
    for secret in ("top-secret-1", "hunter22", "hunter33", "abc123", "key-of-the-client"):
        assert not [name for name, text in texts.items() if secret in text], secret
    assert json.loads(texts["radiximp-bundle/stats.json"])[0]["policy"] == "importance"


def test_a_bundle_that_cannot_be_written_is_one_line(capsys):
    assert main(["bundle", "--url", "http://127.0.0.1:9", "-o", "/nowhere/at/all.tar.gz"]) == 2
    assert "cannot write /nowhere/at/all.tar.gz" in capsys.readouterr().err
