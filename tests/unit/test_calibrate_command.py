"""`radiximp calibrate` against an HTTP server that answers what a scheduler would."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from radiximp.cli import main
from radiximp.cost.live import HOST
from tests.unit.test_live_costs import measured


@pytest.fixture
def server():
    """Its `.answer` is what /radiximp/calibration says."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/radiximp/calibration"
            body = json.dumps(self.server.answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def told() -> dict:
    costs = measured(0.020, 1e-5, 5000)
    costs.note_transfer(HOST, 1000, 0.033)
    return {"mode": "cost", **costs.describe(), "requests": {"fetch_all": 3}}


def test_predicted_stands_beside_measured(server, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    server.answer = {"ranks": [{"dp_rank": 0, "calibration": told()}]}
    assert main(["calibrate", "--url", f"http://127.0.0.1:{server.server_port}"]) == 0
    host, storage, prefill = [
        line.split()
        for line in capsys.readouterr().out.splitlines()
        if " host " in line or " storage " in line or " prefill " in line
    ]
    assert host[1:3] == ["host", "13"]
    assert host[6:8] == ["30", "33"]
    assert storage[2:4] == ["0", "-"]
    assert float(prefill[4]) == pytest.approx(200, rel=0.03)


def test_json_is_the_servers_answer(server, capsys):
    server.answer = {"ranks": [{"dp_rank": 0, "calibration": told()}]}
    assert main(["calibrate", "--json", "--url", f"http://127.0.0.1:{server.server_port}"]) == 0
    assert json.loads(capsys.readouterr().out) == server.answer


def test_a_server_that_measures_nothing_says_why(server, capsys):
    server.answer = {
        "ranks": [{"dp_rank": 0, "calibration": {"mode": "stock", "reason": "fetch_decision is stock"}}]
    }
    assert main(["calibrate", "--url", f"http://127.0.0.1:{server.server_port}"]) == 2
    line = capsys.readouterr().err
    assert "measures nothing (fetch_decision is stock)" in line
    assert line.count("\n") == 1
