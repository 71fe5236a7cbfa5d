"""What a user of the package pays for importing it, and that the layers keep their order."""

from __future__ import annotations

import ast
import doctest
import subprocess
import sys
import time
from pathlib import Path

import pytest

import radiximp
from radiximp.policy import leaf_index

ROOT = Path(radiximp.__file__).parent
# Imports go down this list only; `serving` alone may import sglang, and beside it only what reads attention torch.
LAYERS = ["config", "importance", "policy", "cost", "replay", "serving", "cli"]


@pytest.mark.parametrize("command", [["-c", "import radiximp"], ["-m", "radiximp.cli", "--help"]])
def test_importing_loads_neither_torch_nor_sglang_and_is_quick(command):
    probe = (
        "import sys; heavy = {'torch', 'sglang', 'transformers'} & set(sys.modules); assert not heavy, heavy"
    )
    if command[0] == "-c":
        subprocess.run([sys.executable, "-c", f"{command[1]}; {probe}"], check=True)
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-X", "importtime", *command], check=True, capture_output=True)
        seconds.append(time.perf_counter() - started)
    bare = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-X", "importtime", "-c", "pass"], check=True, capture_output=True)
        bare.append(time.perf_counter() - started)
    # 0.3 s on an idle machine; a loaded one slows the bare interpreter by as much.
    assert min(seconds) < 0.3 + min(bare)


def _imports(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down_only(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    for name in _imports(path):
        top = name.split(".")[0]
        assert top != "eval", f"{path} imports the evaluation"
        if parts[0] != "serving":
            assert top != "sglang" and (top != "torch" or parts[0] == "importance"), f"{path} imports {name}"
        if top == "radiximp" and "." in name and parts[0] in LAYERS and name.split(".")[1] in LAYERS:
            assert LAYERS.index(name.split(".")[1]) <= LAYERS.index(parts[0]), f"{path} imports up: {name}"


def test_docstring_examples():
    assert doctest.testmod(leaf_index).failed == 0
