"""The page with what a server once said: for trees that are larger than the small test server holds."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from radiximp.serving.api import page


def answers_of(core) -> dict[str, object]:
    """What the calls of a server with that tree core would answer, by path below /radiximp/."""
    snapshot = core.snapshot()
    told = {
        "web/access.json": {"key": "none"},
        "stats": {"ranks": [{"dp_rank": 0, **core.stats()}], "prewarm": {}},
        "tree": {
            "interval_s": 2, "age_s": 0, "may": {"change": True, "read_text": False},
            "ranks": [{"dp_rank": 0, "tree": snapshot}],
        },
        "hotspots": {"ranks": [{"dp_rank": 0, "hotspots": core.hotspots(20)}]},
        "pins": {"ranks": [{"dp_rank": 0, "pins": core.pin_book.describe()}]},
        "prewarm": {"jobs": []},
    }  # fmt: skip
    for node_id in snapshot["columns"]["id"]:
        told[f"tree/{node_id}"] = lambda node_id=node_id: {"dp_rank": 0, **core.explain(node_id)}
    return told


@contextmanager
def canned(answers: dict[str, object]) -> Iterator[str]:
    """The address of a server that says so, until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            file, name = page.files().get(path), path.removeprefix(page.ROOT)
            if file is not None:
                self._send(200, file.content, file.headers)
            elif name in answers:
                answer = answers[name]
                content = json.dumps(answer() if callable(answer) else answer).encode()
                self._send(200, content, {"Content-Type": "application/json"})
            else:
                self._send(404, b"{}", {"Content-Type": "application/json"})

        def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for header in headers.items():
                self.send_header(*header)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
