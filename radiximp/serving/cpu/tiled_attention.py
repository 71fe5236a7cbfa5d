"""Causal attention in tiles whose result for a query does not depend on which queries come with it.

A matrix product picks another kernel, and with it another order of summation, for another shape. So every
shape here depends on a query's own position alone: an extend computes queries in tiles that are aligned to
absolute positions, padding a tile that is only partly new, and a decode step multiplies by the same keys
as the tile that holds its position. It computes fewer rows than that tile; whether this machine's kernels
give such rows the tile's bits is measured before it is relied on (`decode_is_like_extend`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from radiximp.serving.cpu.causal_mask import CausalMask

# Positions per query tile. A larger one makes a cold prefill a little faster (15 % at 128) and a
# short suffix on a long prefix twice as slow.
TILE = 64
# Rows of a decode step's product: fewer go through kernels for narrow matrices, which sum in another order.
DECODE_ROWS = 16
# Tiles that the measurement compares, and the KV heads in each: bits differ in one of 100,000 elements or
# so where kernels differ at all, and this compares millions.
PROBE_TILES = (0, 1, 3, 7, 10)
PROBE_HEADS = 64


@dataclass(frozen=True)
class HeadShape:
    """Heads of one layer on one rank; `window` positions before its own are seen, None for all."""

    num_heads: int
    num_kv_heads: int
    scale: float
    window: int | None = None

    @property
    def group(self) -> int:
        return self.num_heads // self.num_kv_heads


class TiledAttention:
    """Attention of one request's new tokens over all its tokens; owned by the forward thread."""

    def __init__(self) -> None:
        self._mask = CausalMask(TILE)

    def extend(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, num_prefix: int, heads: HeadShape
    ) -> torch.Tensor:
        """[num_new, num_heads, v_head_dim] for queries [num_new, num_heads, head_dim] after `num_prefix`
        tokens; keys and values [num_tokens padded to TILE, num_kv_heads, head_dim]."""
        first_tile, offset = divmod(num_prefix, TILE)
        num_tiles = -(-(num_prefix + len(q)) // TILE) - first_tile
        padded = q.new_zeros(num_tiles * TILE, *q.shape[1:])
        padded[offset : offset + len(q)] = q
        # Query heads that share a KV head become rows of one problem, so that K and V are not repeated.
        tiles = padded.view(num_tiles, TILE, heads.num_kv_heads, heads.group, -1).permute(0, 2, 3, 1, 4)
        tiles = tiles.reshape(num_tiles, 1, heads.num_kv_heads, heads.group * TILE, -1)
        output = [
            self._attend(tile, keys, values, (first_tile + i) * TILE, slice(None), heads)
            for i, tile in enumerate(tiles)
        ]
        result = torch.cat(output).view(num_tiles, heads.num_kv_heads, heads.group, TILE, -1)
        result = result.permute(0, 3, 1, 2, 4).reshape(num_tiles * TILE, heads.num_heads, -1)
        return result[offset : offset + len(q)]

    def decode(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, num_prefix: int, heads: HeadShape
    ) -> torch.Tensor:
        """As `extend` for one query [1, num_heads, head_dim], with the same bits."""
        if not decode_is_like_extend(heads.group, q.shape[-1], values.shape[-1], q.dtype):
            return self.extend(q, keys, values, num_prefix, heads)
        return self._narrow(q, keys, values, num_prefix, heads)

    def _narrow(self, q, keys, values, num_prefix: int, heads: HeadShape) -> torch.Tensor:
        row = num_prefix % TILE
        rows = q.view(1, heads.num_kv_heads, heads.group, -1)
        rows = pad(rows, (0, 0, 0, max(0, DECODE_ROWS - heads.group)))
        output = self._attend(rows, keys, values, num_prefix - row, slice(row, row + 1), heads)
        return output[:, :, : heads.group].reshape(1, heads.num_heads, -1)

    def _attend(self, rows, keys, values, begin: int, mask_rows: slice, heads: HeadShape) -> torch.Tensor:
        """`rows` [1, num_kv_heads, num_rows, head_dim] of the tile at `begin` against all keys it can see."""
        first_key = 0 if heads.window is None else max(0, begin - heads.window) // TILE * TILE
        seen = slice(first_key, begin + TILE)
        mask = self._mask.tile(begin - first_key, heads.group, heads.window, rows.dtype)[mask_rows]
        return scaled_dot_product_attention(
            rows,
            keys[seen].transpose(0, 1)[None],
            values[seen].transpose(0, 1)[None],
            attn_mask=mask,
            scale=heads.scale,
        )


@cache
def decode_is_like_extend(group: int, head_dim: int, v_head_dim: int, dtype: torch.dtype) -> bool:
    """True if narrow decode steps give the bits that whole tiles give. Measured once, about a second."""
    generator = torch.Generator().manual_seed(0)
    heads = HeadShape(PROBE_HEADS * group, PROBE_HEADS, head_dim**-0.5)
    attention = TiledAttention()

    def random(num_tokens: int, num_heads: int, dim: int) -> torch.Tensor:
        return torch.randn(num_tokens, num_heads, dim, generator=generator).to(dtype)

    num_tokens = (max(PROBE_TILES) + 1) * TILE
    keys = random(num_tokens, PROBE_HEADS, head_dim)
    values = random(num_tokens, PROBE_HEADS, v_head_dim)
    for tile in PROBE_TILES:
        q = random(TILE, heads.num_heads, head_dim)
        whole = attention.extend(q, keys, values, tile * TILE, heads)
        for row in range(TILE):
            one = attention._narrow(q[row : row + 1], keys, values, tile * TILE + row, heads)
            if not torch.equal(one, whole[row : row + 1]):
                return False
    return True
