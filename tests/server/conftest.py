"""Server tests need SGLang and, without a GPU, the small default model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The small default model, made on first use."""
    from radiximp.serving import default_model

    return default_model.prepare(lambda line: print(line, file=sys.stderr))
