"""The evidence's commands that need a server or the model run, small: `--smoke` writes nothing and says what it found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAYS = {
    "lossless": "RQ4, eviction is lossless: 0 of 17 answers",
    "serving": "importance",
    "block_level": "H1, at every decode step",
    "node_level": "Node level, hit rate",
}


@pytest.mark.skipif(
    not (ROOT / "../shared/traces").is_dir(), reason="needs the public traces in ../shared/traces"
)
@pytest.mark.parametrize("name", SAYS)
def test_smoke(name, model_path):
    done = subprocess.run(
        [sys.executable, "-m", f"eval.{name}", "--smoke"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert SAYS[name] in done.stdout
