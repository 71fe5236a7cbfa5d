"""A real browser for the page's tests: Debian's chromium, driven by playwright, and what it must not do while it is used."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest

CHROMIUM = shutil.which("chromium")
READY = "#tree-panel[data-is-ready=true]"
LAPTOP = {"viewport": {"width": 1440, "height": 900}}
PHONE = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
}


@contextmanager
def chromium() -> Iterator:
    """A running browser; skips the test where there is none."""
    if CHROMIUM is None:
        pytest.skip("needs Debian's package chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs the Python package playwright")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Watched:
    """A page of one server, and what went wrong on it so far."""

    page: object
    host: str
    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def check(self) -> None:
        """No console error, no exception, no request to another host."""
        assert not self.errors, self.errors
        assert not self.foreign, self.foreign


@contextmanager
def opened(browser, url: str, key: str | None = None, **options) -> Iterator[Watched]:
    """The live page in a context of its own; waits for the tree where a key is given. Ends with `Watched.check`."""
    context = browser.new_context(**options)
    try:
        page = context.new_page()
        watched = Watched(page, urlsplit(url).netloc)
        page.on("console", lambda message: message.type == "error" and watched.errors.append(message.text))
        page.on("pageerror", lambda error: watched.errors.append(str(error)))
        page.on("request", lambda request: _note_host(watched, request.url))
        page.set_default_timeout(60_000)
        page.goto(f"{url}/radiximp/")
        if key is not None:
            page.fill("#key", key)
            page.click("#key-form button[type=submit]")
            page.wait_for_selector(READY)
        yield watched
        watched.check()
    finally:
        context.close()


def until(page, expression: str, timeout_s: float = 60.0) -> None:
    """Wait until it is true on the page. (Playwright's own way evaluates text within the page, which its content policy forbids.)"""
    deadline = time.monotonic() + timeout_s
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, f"never became true: {expression}"
        page.wait_for_timeout(100)


def _note_host(watched: Watched, url: str) -> None:
    if urlsplit(url).netloc != watched.host:
        watched.foreign.append(url)


def axe_source(folder: Path) -> str:
    """axe-core, fetched from npm into `folder` or taken from AXE_CORE (a path); skips the test where it cannot be had."""
    given = os.environ.get("AXE_CORE")
    if given:
        return Path(given).read_text()
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm, or AXE_CORE=path/to/axe.min.js")
    done = subprocess.run(
        [npm, "pack", "axe-core@4", "--silent"], cwd=folder, capture_output=True, text=True, timeout=120
    )
    if done.returncode:
        pytest.skip(f"axe-core cannot be fetched from npm: {done.stderr.strip()[-200:]}")
    with tarfile.open(next(folder.glob("axe-core-*.tgz"))) as archive:
        return archive.extractfile("package/axe.min.js").read().decode()


def violations(page, source: str) -> list[str]:
    """What axe calls serious or critical, one line each."""
    page.evaluate(source)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [
        f"{rule['impact']} {rule['id']}: {json.dumps([node['html'][:120] for node in rule['nodes'][:3]])}"
        for rule in found
        if rule["impact"] in ("serious", "critical")
    ]
