"""Where an evaluation finds a public trace: beside the checkout, or in the folder that RADIXIMP_TRACES names."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from eval.replay_tables.workloads import FOLDER_VARIABLE


def find(file: str) -> Path:
    """The trace's path; ends the process with one line and exit code 2 if it is not there."""
    path = Path(os.environ.get(FOLDER_VARIABLE, "../shared/traces")) / file
    if not path.exists():
        print(f"error: {path} is not there; set {FOLDER_VARIABLE}", file=sys.stderr)
        raise SystemExit(2)
    return path
