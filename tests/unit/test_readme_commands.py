"""The commands that README.md and docs/*.md give for one's own traffic run as they stand there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from radiximp.cli import main
from tests.docs_pages import pages
from tests.unit.small_traces import bodies, rows_of

README = (Path(__file__).parents[2] / "README.md").read_text()
SECTION = README.partition("## Replay your own traffic")[2].partition("\n## ")[0]
COMMANDS = re.findall(r"^radiximp (.*)$", SECTION, re.MULTILINE)
# Of the other pages those that need neither a server nor a file of one.
LOCAL = {"replay", "tune", "breakeven"}
OTHERS = [
    shlex.join(words)
    for page in pages()
    if page.name != "README.md"
    for program, *words in page.commands
    if program == "radiximp" and words[0] in LOCAL and len(words) > 1 and "ops.jsonl.gz" not in words
]


def test_the_section_has_commands():
    assert {command.split()[0] for command in COMMANDS} == {"replay", "tune"}
    assert {command.split()[0] for command in OTHERS} == LOCAL


@pytest.mark.parametrize("command", dict.fromkeys(COMMANDS + OTHERS))
def test_command(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows_of(tmp_path / "requests.jsonl", bodies())
    argv = shlex.split(command, comments=True)
    assert main(argv) == 0
    out = capsys.readouterr().out
    if argv[0] == "breakeven":
        assert "fetch wins from" in out
        return
    assert "importance" in out and "Tokens are modelled as 4 bytes" in out
    assert ("--json" in argv) == any(path.name != "requests.jsonl" for path in tmp_path.iterdir())
