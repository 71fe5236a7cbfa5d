"""The evidence's commands that need a server or the model run, small: `--smoke` writes nothing and says what it found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

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


def test_a_branch_is_seen_as_if_it_had_been_read_alone(model_path):
    from eval.model_attention import ModelAttention

    model = ModelAttention(model_path)
    encode = model.tokenizer.encode
    prefix = encode("You are a travel agent. Answer in two sentences, and name a price. " * 6)[:64]
    branches = [
        encode("Where is it warm in March, and what would it cost to go there by train?"),
        encode("Hello"),
    ]
    alone = []
    for branch in branches:
        model.read(prefix + branch)
        alone.append(model.observe(64 + len(branch), 64).block_densities())
    for number in model.read_branches(prefix, branches):
        found = model.observe(64 + len(branches[number]), 64).block_densities()
        torch.testing.assert_close(found, alone[number], rtol=1e-3, atol=1e-4, equal_nan=True)
