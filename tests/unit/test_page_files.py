"""The page's files: all there, nothing from elsewhere, nothing that its content policy would refuse, and only they are open."""

from __future__ import annotations

import re

import pytest

from radiximp.serving.api import page

FILES = page.files()
TEXTS = {url: file.content.decode() for url, file in FILES.items()}


def test_the_page_and_all_it_names_are_there():
    named = re.findall(r'(?:src|href)="([^"]+)"', TEXTS[page.ROOT])
    assert len(named) == 3 and all(page.ROOT + name in FILES for name in named)
    for url, text in TEXTS.items():
        for module in re.findall(r'from "\./([\w.]+)"', text):
            assert f"{page.ROOT}web/{module}" in FILES, f"{url} imports {module}"


@pytest.mark.parametrize("url", FILES)
def test_nothing_is_from_elsewhere_or_refused_by_the_policy(url):
    text = TEXTS[url].replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|//\w+\.\w+/", text.replace("// ", ""))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text)
    if url == page.ROOT:
        assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\bsrc=)", text)


def test_the_policy_lets_nothing_in_but_this_server():
    sources = dict(rule.split(" ", 1) for rule in page.CONTENT_POLICY.split("; "))
    assert sources["default-src"] == sources["frame-ancestors"] == "'none'"
    assert set(sources.values()) == {"'none'", "'self'"}


def test_only_the_files_are_open_and_only_once_they_are_served(monkeypatch):
    monkeypatch.setattr(page, "_open", set())
    assert not page.is_open("GET", "/radiximp/")
    page.open_files()
    assert page.is_open("GET", "/radiximp") and page.is_open("GET", "/radiximp/web/app.js")
    for method, path in (
        ("POST", "/radiximp/"),
        ("GET", "/radiximp/tree"),
        ("GET", "/radiximp/web/../stats"),
        ("GET", "/radiximp/web/"),
        ("GET", "/v1/models"),
    ):
        assert not page.is_open(method, path), path
