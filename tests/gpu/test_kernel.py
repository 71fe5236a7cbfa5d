"""The observation kernel compiled for the GPU that is here. In CI without one this tier is not among `TIERS`."""

from __future__ import annotations

import pytest
import torch

from tests.kernel_cases import SHAPES, check

if not torch.cuda.is_available():
    pytest.exit("tier gpu needs a GPU that torch can use", returncode=5)


def test_the_kernel_equals_its_reference_on_the_gpu():
    assert check("cuda") == 4 * len(SHAPES)
