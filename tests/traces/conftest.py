"""Where the public traces are: not in the repository, beside it where somebody put them."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = [ROOT.parent / "shared" / "traces", ROOT / "shared" / "traces"]


@pytest.fixture
def public_trace():
    """A public trace's path by its file name; skips the test where it is not present."""

    def _path(name: str) -> Path:
        for folder in FOLDERS:
            if (folder / name).is_file():
                return folder / name
        pytest.skip(f"{name} is not in {' or '.join(map(str, FOLDERS))}")

    return _path
