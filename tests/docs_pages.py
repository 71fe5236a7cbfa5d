"""What the pages for users say to type: the commands, flags, settings, calls and names in README.md and docs/*.md."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from radiximp.cli import COMMANDS

ROOT = Path(__file__).parents[1]
# A line of a shell block begins with one of these, and so does a command within a sentence.
PROGRAMS = ("radiximp", "python", "curl", "make", "pip", "git", "grep")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, eq=False)
class Page:
    """One page. Commands are lists of words as a shell would make them, comments left out."""

    path: Path
    text: str = field(repr=False)

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @cached_property
    def blocks(self) -> list[tuple[str, str]]:
        """(language, content) of each fenced block."""
        return _FENCE.findall(self.text)

    @cached_property
    def spans(self) -> list[str]:
        """What stands between backquotes within sentences and tables."""
        return re.findall(r"`([^`\n]+)`", _FENCE.sub("", self.text))

    @cached_property
    def shell_lines(self) -> list[str]:
        """Each command of the blocks; of a block without a language only what begins as a command does."""
        found = []
        for language, content in self.blocks:
            lines = re.sub(r"\\\n\s*", "", content).splitlines()
            if language in ("sh", "bash"):
                found += [line for line in lines if line.strip() and not line.startswith("#")]
            elif not language:
                found += [line for line in lines if line.startswith(("radiximp ", "python -m "))]
        return found

    @cached_property
    def commands(self) -> list[list[str]]:
        """Those of the blocks, and those within sentences that name more than a program and a subcommand."""
        inline = [span for span in self.spans if span.split()[0] in PROGRAMS and len(span.split()) > 1]
        return [shlex.split(line, comments=True) for line in [*self.shell_lines, *inline]]

    @cached_property
    def server_flags(self) -> list[list[str]]:
        """Lines and spans that are flags by themselves."""
        lines = [line.strip() for line in self.text.splitlines() if line.startswith("    --")]
        return [shlex.split(flags) for flags in [*lines, *self.spans] if flags.startswith("--")]

    @cached_property
    def settings(self) -> list[dict]:
        """Every JSON object that is given as a configuration, by flag or alone in backquotes."""
        given = re.findall(r"policy-config[ =]'(\{.*?\})'", re.sub(r"\\\n\s*", "", self.text))
        return [json.loads(text) for text in given] + [
            found for span in self.spans if span.startswith("{") and (found := _json(span)) is not None
        ]

    @cached_property
    def calls(self) -> set[tuple[str, str]]:
        """(method, path) of our HTTP calls that are named; names of path parameters left out."""
        named = re.findall(r"\b(GET|POST|DELETE) +(/radiximp/[\w/{}]*)", self.text)
        return {(method, re.sub(r"\{\w*\}", "{}", path)) for method, path in named}

    @cached_property
    def links(self) -> list[tuple[str, str]]:
        """(path, anchor) of each link to another file here."""
        found = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", self.text)
        return [(path, anchor) for path, anchor in found if "://" not in path]


def _json(text: str) -> dict | None:
    try:
        return json.loads(text)
    except ValueError:
        return None  # with dots or capitals in the place of values


def pages() -> list[Page]:
    return [Page(path, path.read_text()) for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]]


def headings(text: str) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", _FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def command_parser(name: str) -> argparse.ArgumentParser:
    """The parser of a `radiximp` subcommand. Raises KeyError if there is none."""
    parser = argparse.ArgumentParser(prog=f"radiximp {name}", description=COMMANDS[name])
    importlib.import_module(f"radiximp.cli.{name}").add_arguments(parser)
    return parser


def options_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """All its options, those of its subcommands too."""
    yield from parser._option_string_actions
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from options_of(child)
