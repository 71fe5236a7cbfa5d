from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from eval import report

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_says_what_the_result_files_say():
    done = subprocess.run(
        [sys.executable, "-m", "eval.report", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_what_was_not_measured_says_so():
    text = report.page({})
    assert text.count("not measured yet") == len(report.SECTIONS)
    assert "python -m eval.lossless" in text


def test_every_verdict_of_a_file_is_on_the_page():
    for document in report.documents().values():
        for line in document["verdicts"]:
            assert f"- {line}\n" in report.PAGE.read_text()
