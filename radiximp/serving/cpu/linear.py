"""Matrix products whose result for a row does not depend on how many rows are computed with it.

oneDNN picks another kernel, and with it another order of summation, for another number of rows. A prefix
that was computed in one long prefill would then differ in the last bit from the same prefix behind a
cached part. So only products of a few fixed kinds are run, and each kind is compared with the others on
this machine, once per weight shape, before it is used. Used for every unquantised layer (`register`).
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F

# Up to this many rows, rounded up to the alignment, `weight @ x.T` gives a row the same bits.
TILE = 128
ALIGNMENT = 16
# Many rows: `x @ weight.T` on exactly this many. Twice as fast per row as a tile.
BLOCK = 1024
# Where the tiles of this machine are not alike, every product has exactly this many rows.
PADDED_TILE = 32


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`x @ weight.T + bias`: x [..., in_features], weight [out_features, in_features]; a contiguous result."""
    rows = x.reshape(-1, x.shape[-1])
    output = rows.new_empty(rows.shape[0], weight.shape[0])
    begin = 0
    while begin < rows.shape[0]:
        end = min(begin + _num_rows_at_once(rows.shape[0] - begin, weight), rows.shape[0])
        _multiply(rows[begin:end], weight, output[begin:end])
        begin = end
    if bias is not None:
        output += bias
    return output.view(*x.shape[:-1], weight.shape[0])


def prepare(model: torch.nn.Module) -> None:
    """Make the comparisons for every layer's weight now, while the model loads, and not in a request."""
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if hasattr(module, "quant_method") and isinstance(weight, torch.Tensor) and weight.dim() == 2:
            tiles_are_alike(tuple(weight.shape), weight.dtype)
            if hasattr(module, "input_size"):  # a linear layer; the head sees few rows
                block_is_like_tiles(tuple(weight.shape), weight.dtype)


def _num_rows_at_once(num_rows: int, weight: torch.Tensor) -> int:
    shape, dtype = tuple(weight.shape), weight.dtype
    if not tiles_are_alike(shape, dtype):
        return PADDED_TILE
    # From half a block on, a padded block is cheaper than tiles.
    if num_rows > BLOCK // 2 and block_is_like_tiles(shape, dtype):
        return BLOCK
    return TILE


def _multiply(rows: torch.Tensor, weight: torch.Tensor, output: torch.Tensor) -> None:
    """One product; `_num_rows_at_once` chose the number of rows."""
    num_rows = rows.shape[0]
    if num_rows > TILE:
        output.copy_(F.linear(_padded(rows, BLOCK), weight)[:num_rows])
    elif tiles_are_alike(tuple(weight.shape), weight.dtype):
        output.copy_(_tile(_padded(rows, ALIGNMENT), weight)[:num_rows])
    else:
        output.copy_(F.linear(_padded(rows, PADDED_TILE), weight)[:num_rows])


def _tile(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.mm(weight, rows.t()).t()


def _padded(rows: torch.Tensor, multiple: int) -> torch.Tensor:
    missing = -rows.shape[0] % multiple
    return F.pad(rows, (0, 0, 0, missing)) if missing else rows


@lru_cache(maxsize=None)
def tiles_are_alike(shape: tuple[int, int], dtype: torch.dtype) -> bool:
    """True if each leading part of a tile gives the bits that the whole tile gives."""
    weight, rows = _probe(shape, dtype, TILE)
    whole = _tile(rows, weight)
    return all(torch.equal(_tile(rows[:n], weight), whole[:n]) for n in range(ALIGNMENT, TILE, ALIGNMENT))


@lru_cache(maxsize=None)
def block_is_like_tiles(shape: tuple[int, int], dtype: torch.dtype) -> bool:
    """True if a block gives the bits that its tiles give."""
    weight, rows = _probe(shape, dtype, BLOCK)
    tiles = torch.cat([_tile(part, weight) for part in rows.split(TILE)])
    return torch.equal(F.linear(rows, weight), tiles)


def _probe(shape: tuple[int, int], dtype: torch.dtype, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A random weight of the shape and random rows for it, the same in every process."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, generator=generator).to(dtype)
    return weight, torch.randn(num_rows, shape[1], generator=generator).to(dtype)


def register() -> None:
    """Route SGLang's unquantised layers and the language-model head through `linear`."""
    from sglang.srt.layers.quantization.unquant import UnquantizedEmbeddingMethod, UnquantizedLinearMethod
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for method in (UnquantizedLinearMethod, UnquantizedEmbeddingMethod):
        HookRegistry.register(
            f"{method.__module__}.{method.__qualname__}.apply",
            lambda self, layer, x, bias=None: linear(x, layer.weight, bias),
            HookType.REPLACE,
        )
    HookRegistry.register(
        "sglang.srt.layers.logits_processor.LogitsProcessor._compute_lm_head", _lm_head, HookType.AROUND
    )


def _lm_head(original, self, hidden_states, lm_head, embedding_bias=None, *, out=None) -> torch.Tensor:
    from sglang.srt.layers.logits_processor import should_apply_lm_head_quant_method

    quant_method = getattr(lm_head, "quant_method", None)
    is_plain = hasattr(lm_head, "weight") and not should_apply_lm_head_quant_method(lm_head, quant_method)
    if not is_plain or hasattr(lm_head, "set_lora") or self.use_fp32_lm_head:
        return original(self, hidden_states, lm_head, embedding_bias, out=out)
    return linear(hidden_states.to(lm_head.weight.dtype), lm_head.weight)
