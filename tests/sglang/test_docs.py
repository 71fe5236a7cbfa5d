"""README.md and docs/*.md against SGLang: flags of the server exist, calls are routes, the generated reference is up to date."""

from __future__ import annotations

import argparse
import re
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import sglang
from sglang.srt.entrypoints import http_server
from sglang.srt.server_args import ServerArgs

from radiximp.cli import COMMANDS
from radiximp.serving.api import http_docs
from radiximp.serving.tree import backend
from tests.docs_pages import ROOT, Page, command_parser, options_of, pages

for_each_page = pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
WORD = re.compile(r"[a-z]+(?:_[a-z]+)+")


@cache
def server_parser() -> argparse.ArgumentParser:
    backend.register_policy()
    parser = argparse.ArgumentParser(prog="sglang.launch_server")
    ServerArgs.add_cli_args(parser)
    return parser


@cache
def routes() -> set[tuple[str, str]]:
    http_docs.openapi()  # adds ours
    return {
        (method, re.sub(r"\{\w*\}", "{}", route.path))
        for route in http_server.app.routes
        for method in getattr(route, "methods", None) or ()
    }


def test_the_reference_of_calls_is_what_the_code_says():
    assert (ROOT / "docs/api.md").read_text() == http_docs.page(), (
        "python -m radiximp.serving.api.http_docs > docs/api.md"
    )


def test_the_reference_has_every_call_with_its_fields():
    text = http_docs.page()
    # What the page itself loads is no call.
    assert Page(ROOT / "docs/api.md", text).calls == {
        call for call in routes() if re.match("/radiximp/(?!web/)", call[1])
    }
    assert "| `ttl_s` | number |" in text and "| `input_ids` | list of integer |" in text


@for_each_page
def test_commands_that_start_a_server_parse(page: Page):
    for command in page.commands:
        if command[:3] == ["python", "-m", "sglang.launch_server"]:
            server_parser().parse_args(command[3:])


@for_each_page
def test_flags_are_flags_of_the_server_or_of_our_commands(page: Page):
    ours = {option for name in COMMANDS for option in options_of(command_parser(name))}
    known = server_parser()._option_string_actions
    for words in page.server_flags:
        for word, following in zip(words, [*words[1:], ""], strict=True):
            name, _, value = word.partition("=")
            if not name.startswith("--"):
                continue
            assert name in known or name in ours, f"{page.name}: there is no {name}"
            value = value or ("" if following.startswith("--") else following)
            choices = name in known and known[name].choices
            assert not (choices and value.islower()) or value in choices, f"{page.name}: {name} {value}"


@for_each_page
def test_calls_are_routes(page: Page):
    assert page.calls <= routes(), page.calls - routes()
    paths = {path for _, path in routes()}
    for command in page.commands:
        if command[0] == "curl":
            (url,) = [word for word in command if word.startswith("http")]
            assert urlsplit(url).path in paths, url
    for span in page.spans:
        if re.fullmatch(r"/radiximp/\w[\w/?=&]*", span):
            assert span.partition("?")[0] in paths, f"{page.name}: {span}"


@cache
def our_words() -> set[str]:
    return {word for file in (ROOT / "radiximp").rglob("*.py") for word in WORD.findall(file.read_text())}


@for_each_page
def test_names_are_names_of_the_code(page: Page):
    named = {span for span in page.spans if WORD.fullmatch(span)} - our_words()
    for file in (Path(sglang.__file__).parent / "srt").rglob("*.py"):
        if not named:
            break
        named -= set(WORD.findall(file.read_text()))
    assert not named, f"{page.name}: nothing is called {sorted(named)}"
