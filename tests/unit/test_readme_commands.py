"""The commands that the README gives for one's own traffic run as they stand there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from radiximp.cli import main
from tests.unit.small_traces import bodies, rows_of

README = (Path(__file__).parents[2] / "README.md").read_text()
SECTION = README.partition("## Replay your own traffic")[2].partition("\n## ")[0]
COMMANDS = re.findall(r"^radiximp (.*)$", SECTION, re.MULTILINE)


def test_the_section_has_commands():
    assert {command.split()[0] for command in COMMANDS} == {"replay", "tune"}


@pytest.mark.parametrize("command", COMMANDS)
def test_command(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows_of(tmp_path / "requests.jsonl", bodies())
    argv = shlex.split(command, comments=True)
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert "importance" in out and "Tokens are modelled as 4 bytes" in out
    assert ("--json" in argv) == any(path.name != "requests.jsonl" for path in tmp_path.iterdir())
