"""Row-stable matrix products: a row's bits do not depend on how many rows come with it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from radiximp.serving.cpu.linear import BLOCK, PADDED_TILE, TILE, linear, tiles_are_alike

# (out_features, in_features): SmolLM2-135M whole and as one of three ranks, and shapes where oneDNN's
# kernels for few and for many rows are known to differ.
SHAPES = [(960, 576), (3072, 576), (576, 1536), (320, 576), (576, 192), (1024, 512), (896, 4864)]
NUM_ROWS = [1, 2, 15, 16, 17, 33, 64, 100, TILE, TILE + 1, 200, BLOCK // 2, BLOCK // 2 + 1, BLOCK, 1324]


def operands(shape: tuple[int, int], num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(num_rows, shape[1], generator=generator).to(torch.bfloat16)
    return x, torch.randn(shape, generator=generator).to(torch.bfloat16)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_do_not_depend_on_their_number_or_place(shape: tuple[int, int]) -> None:
    x, weight = operands(shape, max(NUM_ROWS))
    whole = linear(x, weight)
    for num_rows in NUM_ROWS:
        assert torch.equal(linear(x[:num_rows], weight), whole[:num_rows])
        assert torch.equal(linear(x[-num_rows:], weight), whole[-num_rows:])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_float64_within_rounding(shape: tuple[int, int]) -> None:
    x, weight = operands(shape, 300)
    bias = torch.arange(shape[0]).to(torch.bfloat16)
    expected = F.linear(x.double(), weight.double(), bias.double())
    torch.testing.assert_close(linear(x, weight, bias).double(), expected, rtol=2**-6, atol=0.5)


def test_keeps_leading_dimensions_and_is_contiguous() -> None:
    x, weight = operands((8, 16), 30)
    output = linear(x.view(2, 15, 16), weight)
    assert output.shape == (2, 15, 8) and output.is_contiguous()


def test_unlike_tiles_are_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine whose kernels differ from row count to row count, one row count is used for everything."""
    import radiximp.serving.cpu.linear as module

    monkeypatch.setattr(module, "tiles_are_alike", lambda shape, dtype: False)
    x, weight = operands((896, 4864), 200)
    whole = linear(x, weight)
    for num_rows in (1, PADDED_TILE - 1, PADDED_TILE, PADDED_TILE + 1, 150):
        assert torch.equal(linear(x[:num_rows], weight), whole[:num_rows])


def test_probe_result_is_kept() -> None:
    before = tiles_are_alike.cache_info().misses
    linear(*operands((24, 40), 5))
    linear(*operands((24, 40), 90))
    assert tiles_are_alike.cache_info().misses == before + 1
