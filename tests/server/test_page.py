"""The live page in a real browser and `radiximp top` in a real terminal, both against the running server."""

from __future__ import annotations

import itertools
import json
import os
import pty
import random
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.server.browser import LAPTOP, PHONE, READY, axe_source, chromium, opened, until, violations
from tests.server.canned import canned
from tests.server.server import launch

KEY = "secret"
ADMIN = {"Authorization": f"Bearer {KEY}"}
FLAGS = [
    *("--radix-eviction-policy", "importance", "--max-total-tokens", "4096", "--hicache-ratio", "1.5"),
    *("--api-key", "users", "--admin-api-key", KEY, "--enable-cache-report"),
    *("--radix-eviction-policy-config", '{"hotspot_queries": 3, "what_if_rate": 0.25}'),
]
SYSTEM = "You are a careful clerk of a small library. " * 12
_numbers = itertools.count()
# Milliseconds from a change of the filter to the next frame, the median of nine.
REDRAWS = """async () => {
  const least = document.querySelector('#least'), took = [];
  for (let turn = 0; turn < 9; turn++) {
    least.value = turn;
    const started = performance.now();
    least.dispatchEvent(new Event('input'));
    await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
    took.push(performance.now() - started);
  }
  return took.sort((a, b) => a - b)[4];
}"""


@pytest.fixture(scope="module")
def server():
    with launch(FLAGS) as server:
        for number in range(6):
            ask(server, f"{number} plus {number}?")
        for number in range(8):
            generate(server, [1000 + (number * 997 + i * 31) % 39000 for i in range(150 + 90 * number)])
        yield server


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def axe(tmp_path_factory):
    return axe_source(tmp_path_factory.mktemp("axe"))


def api(server, method: str, path: str, **content) -> httpx.Response:
    url = f"{server.url}/radiximp/{path}"
    return httpx.request(method, url, headers=ADMIN, timeout=120, trust_env=False, **content)


def as_user(server, path: str, body: dict) -> None:
    headers = {"Authorization": "Bearer users"}
    httpx.post(server.url + path, json=body, headers=headers, timeout=300, trust_env=False).raise_for_status()


def ask(server, text: str) -> None:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    as_user(server, "/v1/chat/completions", {"model": "default", "messages": messages, "max_tokens": 1})
    time.sleep(0.4)


def generate(server, ids: list[int]) -> None:
    as_user(server, "/generate", {"input_ids": ids, "sampling_params": {"max_new_tokens": 1}})


def screenshot(page, name: str, tmp_path: Path) -> None:
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=folder / f"{name}.png", full_page=True)


def select_by_keys(page) -> None:
    """The first node from the top."""
    page.focus("#tree")
    page.keyboard.press("Home")
    page.wait_for_selector("#node dl")


def node_of(page) -> int:
    return int(page.inner_text("#node dl dd >> nth=0"))


# ---- what is open and what is not ----


def test_the_files_need_no_key_and_the_data_does(server):
    page = httpx.get(f"{server.url}/radiximp", follow_redirects=True, trust_env=False)
    assert page.status_code == 200 and "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert "unsafe" not in page.headers["Content-Security-Policy"]
    for name in re.findall(r'(?:src|href)="(web/[\w.]+)"', page.text):
        file = httpx.get(f"{server.url}/radiximp/{name}", trust_env=False)
        assert file.status_code == 200 and file.headers["X-Content-Type-Options"] == "nosniff"
        again = {"If-None-Match": file.headers["ETag"]}
        assert httpx.get(f"{server.url}/radiximp/{name}", headers=again, trust_env=False).status_code == 304
    assert httpx.get(f"{server.url}/radiximp/web/access.json", trust_env=False).json() == {"key": "admin"}
    for path in ("tree", "tree/1", "stats", "hotspots", "pins", "prewarm", "web/../stats", "web/none.js"):
        for headers in ({}, {"Authorization": "Bearer users"}):
            answer = httpx.get(f"{server.url}/radiximp/{path}", headers=headers, trust_env=False)
            assert answer.status_code in (401, 404), (path, answer.status_code)
            assert "nodes" not in answer.text


def test_all_who_ask_share_a_snapshot(server):
    first = api(server, "GET", "tree")
    told = first.json()
    assert told["may"] == {"change": True, "read_text": True} and told["interval_s"] >= 2
    (rank,) = told["ranks"]
    assert rank["tree"]["nodes"] > 8 and len(rank["tree"]["columns"]["id"]) > 8
    same = httpx.get(
        f"{server.url}/radiximp/tree",
        headers={**ADMIN, "If-None-Match": first.headers["ETag"]},
        trust_env=False,
    )
    assert same.status_code == 304 or same.headers["ETag"] != first.headers["ETag"]


def test_a_node_is_told_with_its_text_only_when_asked(server):
    (rank,) = api(server, "GET", "tree").json()["ranks"]
    node_id = rank["tree"]["columns"]["id"][0]
    node = api(server, "GET", f"tree/{node_id}").json()
    assert node["node"] == node_id and "preview" not in node and "preview_ids" not in node
    assert api(server, "GET", f"tree/{node_id}", params={"preview": True}).json()["preview"]
    gone = api(server, "GET", "tree/999999999")
    assert gone.status_code == 404 and "no node 999999999" in gone.text
    assert api(server, "POST", "pins", json={"node_id": 999999999}).status_code == 404
    both = api(server, "POST", "pins", json={"node_id": 1, "prewarm_id": "x"})
    assert both.status_code in (400, 422) and "exactly one of" in both.text


# ---- in the browser ----


def test_without_a_key_the_page_asks_for_it_and_for_nothing_else(server, browser):
    with opened(browser, server.url) as watched:
        page = watched.page
        page.wait_for_selector("#key-form:not([hidden])")
        assert "admin key" in page.inner_text("#key-note")
        page.wait_for_timeout(1000)
        assert page.locator("#node dl").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width, options", [(1440, LAPTOP), (390, PHONE)])
def test_it_looks_right_and_axe_finds_nothing_serious(server, browser, axe, width, options, scheme, tmp_path):
    with opened(browser, server.url, KEY, color_scheme=scheme, **options) as watched:
        page = watched.page
        for _ in range(3):
            ask(server, f"And {next(_numbers)} plus one?")
            page.wait_for_timeout(2500)
        select_by_keys(page)
        page.wait_for_selector("#hotspots table")
        page.wait_for_selector("#time svg")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        screenshot(page, f"{width}-{scheme}", tmp_path)
        assert violations(page, axe) == []


def test_a_click_and_keys_select_and_a_filter_narrows(server, browser):
    with opened(browser, server.url, KEY, **LAPTOP) as watched:
        page = watched.page
        page.click("#tree", position={"x": 30, "y": 12})
        page.wait_for_selector("#node dl")
        clicked = node_of(page)
        page.keyboard.press("ArrowRight")
        until(page, f"Number(document.querySelector('#node dl dd').textContent) !== {clicked}")
        page.keyboard.press("ArrowLeft")
        until(page, f"Number(document.querySelector('#node dl dd').textContent) === {clicked}")
        assert "go" in page.inner_text("#node")
        page.keyboard.press("Enter")
        page.wait_for_selector("#crumbs button >> nth=1")
        page.keyboard.press("Escape")
        until(page, "document.querySelectorAll('#crumbs button').length === 1")
        page.select_option("#filter", "pinned")
        until(page, "/; 0 of \\d+ shown match/.test(document.querySelector('#tree-said').textContent)")
        page.select_option("#filter", "all")
        page.fill("#least", "200")
        until(
            page, "/; [1-9]\\d* of \\d+ shown match/.test(document.querySelector('#tree-said').textContent)"
        )
        for colour in ("age", "tier", "importance"):
            before = page.evaluate("document.querySelector('#tree').toDataURL()")
            page.check(f"input[name=colour][value={colour}]")
            page.wait_for_timeout(200)
            assert page.evaluate("document.querySelector('#tree').toDataURL()") != before, colour


def test_a_node_is_pinned_and_unpinned_and_its_text_shows_when_asked(server, browser):
    with opened(browser, server.url, KEY, **LAPTOP) as watched:
        page = watched.page
        select_by_keys(page)
        node_id = node_of(page)
        assert page.locator("#node blockquote").count() == 0
        page.click("#text")
        assert page.inner_text("#node blockquote").strip()
        page.click("#pin")
        page.wait_for_selector("#node .unpin")
        page.wait_for_selector("#pins table")
        (rank,) = api(server, "GET", "pins").json()["ranks"]
        assert len(rank["pins"]) == 1 and rank["pins"][0]["tokens_pinned"] > 0
        assert api(server, "GET", f"tree/{node_id}").json()["is_pinned"]
        page.click("#node .unpin")
        until(page, "document.querySelector('#pins').textContent === 'No pins.'")
        assert not api(server, "GET", f"tree/{node_id}").json()["is_pinned"]


def test_jobs_are_made_and_cancelled(server, browser):
    with opened(browser, server.url, KEY, **LAPTOP) as watched:
        page = watched.page
        page.wait_for_selector("#jobs > *")
        # The first one keeps the worker busy, so that the second waits.
        for number, words in enumerate(("One long story about whales. ", "A second story about ships. "), 1):
            page.fill("#job-prompts", words * 400)
            page.click("#job-form button")
            until(page, f"document.querySelectorAll('#jobs tbody tr').length === {number}")
        assert page.inner_text("#job-said").startswith("Job ")
        waiting = page.locator("#jobs tbody tr").first
        waiting.get_by_role("button").click()
        until(page, "document.querySelector('#jobs tbody tr').textContent.includes('cancelled')")
        newest = api(server, "GET", "prewarm").json()["jobs"][0]
        assert newest["state"] == "cancelled"
        page.fill("#job-prompts", '{"text": "x", ')
        page.click("#job-form button")
        until(page, "document.querySelector('#job-said').textContent.includes('line 1')")
        for job in api(server, "GET", "prewarm").json()["jobs"]:
            api(server, "DELETE", f"prewarm/{job['id']}")


def large_tree(num_rows: int) -> dict:
    """A snapshot with as many rows as one ever has: prompts of many lengths that branch off each other."""
    rng = random.Random(5)
    parents = [-1, *(rng.randrange(-1, row) if rng.random() < 0.8 else -1 for row in range(1, num_rows))]
    tokens = [int(rng.paretovariate(0.9) * 16) % 4000 + 1 for _ in range(num_rows)]
    subtree_tokens, subtree_nodes = list(tokens), [1] * num_rows
    for row in reversed(range(num_rows)):
        if parents[row] >= 0:
            subtree_tokens[parents[row]] += subtree_tokens[row]
            subtree_nodes[parents[row]] += subtree_nodes[row]
    columns = {
        "id": list(range(1, num_rows + 1)), "parent": parents, "tokens": tokens, "nodes": [1] * num_rows,
        "subtree_tokens": subtree_tokens, "subtree_nodes": subtree_nodes,
        "tiers": [rng.choice((1, 2, 3)) for _ in range(num_rows)], "flags": [0] * num_rows,
        "importance": [rng.choice((None, rng.lognormvariate(0, 1))) for _ in range(num_rows)],
        "age_s": [rng.expovariate(1 / 300) for _ in range(num_rows)], "queries": [1] * num_rows,
    }  # fmt: skip
    return {
        "nodes": 50_000, "tokens": sum(tokens) + 200_000, "left_out_nodes": 50_000 - num_rows, "left_out_tokens": 200_000,
        "leaves": {"device": 1, "host": 0}, "next_victim": 2, "columns": columns, "seconds": 0.1,
    }  # fmt: skip


def test_a_tree_of_fifty_thousand_nodes_is_fluid(server, browser, tmp_path):
    """Two seconds until it can be used is the aim; a loaded machine has three times that."""
    rank = {"dp_rank": 0, "tree": large_tree(10_000)}
    answers = {
        "web/access.json": {"key": "none"},
        "stats": api(server, "GET", "stats").json(),
        "tree": {"interval_s": 60, "may": {"change": True, "read_text": False}, "ranks": [rank]},
        "hotspots": {"ranks": [{"dp_rank": 0, "hotspots": []}]},
        "pins": {"ranks": [{"dp_rank": 0, "pins": []}]},
        "prewarm": {"jobs": []},
    }
    node_id = api(server, "GET", "tree").json()["ranks"][0]["tree"]["columns"]["id"][0]
    node = api(server, "GET", f"tree/{node_id}").json()
    answers |= {f"tree/{number}": {**node, "node": number} for number in range(1, 10_001)}
    with canned(answers) as url, opened(browser, url, **LAPTOP) as watched:
        started = time.monotonic()
        page = watched.page
        page.wait_for_selector(READY)
        select_by_keys(page)
        seconds = time.monotonic() - started
        frames = page.evaluate(REDRAWS)
        print(f"usable after {seconds:.2f} s, a redraw takes {frames:.1f} ms")
        page.keyboard.press("Enter")
        for _ in range(6):
            page.keyboard.press("ArrowDown")
            page.keyboard.press("ArrowRight")
        screenshot(page, "large", tmp_path)
        assert "40,000 small nodes" in page.inner_text("#tree-said") or page.locator("#node dl").count()
        assert seconds < 6 and frames < 200


def test_a_wrong_key_is_asked_for_again(server, browser):
    with opened(browser, server.url) as watched:
        page = watched.page
        page.fill("#key", "wrong")
        page.click("#key-form button[type=submit]")
        until(page, "document.querySelector('#key-note').textContent.includes('did not accept')")
        page.fill("#key", KEY)
        page.click("#key-form button[type=submit]")
        page.wait_for_selector(READY)
        # The browser itself notes a refused call.
        assert all("401" in error for error in watched.errors)
        watched.errors.clear()


# ---- in a terminal ----


def command(server, *arguments: str, key: str = KEY) -> list[str]:
    return [sys.executable, "-m", "radiximp.cli", "top", "--url", server.url, "--api-key", key, *arguments]


def test_top_once_for_people_and_scripts(server):
    shown = subprocess.run(command(server, "--once"), capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0, shown.stderr
    for word in (
        "since start",
        "hotspots",
        "pre-warm jobs",
        "pins",
        "classes of reuse",
        "what lru would find",
    ):
        assert word in shown.stdout, word
    told = json.loads(
        subprocess.run(command(server, "--once", "--json"), capture_output=True, text=True, timeout=60).stdout
    )
    assert told["stats"]["ranks"][0]["policy"] == "importance" and "jobs" in told["prewarm"]


def test_top_says_in_one_line_what_is_wrong(server):
    for arguments, text in (
        (command(server, "--once", key="wrong"), "answered 401"),
        (command(server), "needs a terminal"),
        (command(server, "--every-s", "0"), "--every-s: expected 0.1 to 3600"),
    ):
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        assert done.returncode == 2 and text in done.stderr and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_top_lives_in_a_terminal_until_it_is_left(server, key):
    child, terminal = pty.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell that put us into the background has it ignored
        os.environ.update(TERM="xterm-256color", COLUMNS="120", LINES="50")
        os.execv(sys.executable, command(server, "--every-s", "0.5"))
    shown, deadline, is_left = b"", time.monotonic() + 60, False
    while time.monotonic() < deadline:
        ready, _, _ = select.select([terminal], [], [], 0.5)
        if ready:
            try:
                shown += os.read(terminal, 1 << 16)
            except OSError:  # it has ended
                break
        if not is_left and b"since last look" in shown:
            os.write(terminal, key)
            is_left = True
    assert is_left, shown[-2000:]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert b"\x1b[?1049h" in shown and b"\x1b[?1049l" in shown  # its own screen, and back
