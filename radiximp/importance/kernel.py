"""The attention of a few watched queries over paged keys, summed per token: Triton kernels and their torch reference.

Two passes over the keys that the queries see. The first finds each row's normaliser, the keys split over programs as in
flash decoding; the second goes over tiles of keys, heads inside, so that the mean over heads is taken per query before
it is squared, and nothing of size queries x keys is written.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from radiximp.importance.density import reduced_sums
from radiximp.importance.scorers import softmax

_TILE_KEYS = 64
# tl.dot multiplies at least 16 rows.
_MIN_ROWS = 16
# The interpreter multiplies bfloat16 wrongly; tensor cores do not.
_IS_INTERPRETED = triton.knobs.runtime.interpret
# Keys per program of the first pass: enough programs for one long prompt, few enough partial sums.
_SPLIT_KEYS = 2048


def token_sums_reference(q, key_cache, slots, positions, scale: float, window: int | None, reduction: str):
    """What `token_sums` gives, from dense attention."""
    return reduced_sums(softmax(q, key_cache[slots.long()], positions, 1, scale, window), reduction)


def token_sums(
    q: torch.Tensor,
    key_cache: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    scale: float,
    window: int | None,
    reduction: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums over queries of the head-reduced softmax mass of each key, and of its square: two [num_keys] float32.

    q [num_queries, num_heads, head_dim]; key_cache [num_slots, num_kv_heads, head_dim], contiguous in head_dim;
    slots [num_keys] integer, the key of each position; positions [num_queries] int64; reduction "mean" or "max"
    over heads. Launches only: no synchronisation with the host.
    """
    num_queries, num_heads, head_dim = q.shape
    num_keys = len(slots)
    num_kv_heads = key_cache.shape[1]
    rows = max(_MIN_ROWS, triton.next_power_of_2(num_queries))
    padded = q.new_zeros(num_heads, rows, head_dim)
    padded[:, :num_queries] = q.transpose(0, 1)
    # A row that is padding sees position 0 only and is left out of the sums.
    row_positions = positions.new_zeros(rows)
    row_positions[:num_queries] = positions
    num_splits = triton.cdiv(num_keys, _SPLIT_KEYS)
    largest = torch.empty(num_splits, num_heads, rows, device=q.device)
    weight = torch.empty_like(largest)
    shape = dict(
        group=num_heads // num_kv_heads, dim=head_dim, dim_padded=triton.next_power_of_2(head_dim), rows=rows,
        tile=_TILE_KEYS, window=-1 if window is None else window, is_upcast=_IS_INTERPRETED,
    )  # fmt: skip
    strides = key_cache.stride(0), key_cache.stride(1)
    _normalisers[num_heads, num_splits](
        padded, key_cache, slots, row_positions, largest, weight, num_keys, num_heads, scale, *strides,
        split=_SPLIT_KEYS, **shape,
    )  # fmt: skip
    top = largest.amax(0)
    log_normaliser = top + (weight * (largest - top).exp()).sum(0).log()
    total = torch.empty(num_keys, device=q.device)
    squares = torch.empty_like(total)
    _sums[triton.cdiv(num_keys, _TILE_KEYS),](
        padded, key_cache, slots, row_positions, log_normaliser, total, squares, num_keys, num_queries, num_heads,
        scale, *strides, is_mean=reduction == "mean", **shape,
    )  # fmt: skip
    return total, squares


@triton.jit
def _logits(q, key_cache, slots, row_positions, head, keys, num_keys, scale, slot_stride, head_stride,
            group: tl.constexpr, dim: tl.constexpr, dim_padded: tl.constexpr, rows: tl.constexpr,
            window: tl.constexpr, is_upcast: tl.constexpr):  # fmt: skip
    """[rows, tile] logits of one head; -inf where a row does not see a key."""
    row = tl.arange(0, rows)
    channel = tl.arange(0, dim_padded)
    in_dim = channel < dim
    q_tile = tl.load(
        q + (head * rows + row)[:, None] * dim + channel[None, :], mask=in_dim[None, :], other=0.0
    )
    slot = tl.load(slots + keys, mask=keys < num_keys, other=0).to(tl.int64)
    at = slot[None, :] * slot_stride + (head // group) * head_stride + channel[:, None]
    k_tile = tl.load(key_cache + at, mask=in_dim[:, None] & (keys < num_keys)[None, :], other=0.0)
    if is_upcast:
        q_tile = q_tile.to(tl.float32)
    k_tile = k_tile.to(q_tile.dtype)
    products = tl.dot(q_tile, k_tile, input_precision="ieee") * scale
    position = tl.load(row_positions + row)
    seen = (keys[None, :] <= position[:, None]) & (keys < num_keys)[None, :]
    if window >= 0:
        seen = seen & (keys[None, :] >= position[:, None] - window)
    return tl.where(seen, products, float("-inf"))


@triton.jit
def _normalisers(q, key_cache, slots, row_positions, largest, weight, num_keys, num_heads, scale,
                 slot_stride, head_stride, split: tl.constexpr, group: tl.constexpr, dim: tl.constexpr,
                 dim_padded: tl.constexpr, rows: tl.constexpr, tile: tl.constexpr,
                 window: tl.constexpr, is_upcast: tl.constexpr):  # fmt: skip
    """Program (head, split): the largest logit of each row among the split's keys, and the sum of exponentials."""
    head, number = tl.program_id(0), tl.program_id(1)
    top = tl.full((rows,), -1e30, tl.float32)  # finite, so that a row that sees nothing here gives weight 0
    total = tl.zeros((rows,), tl.float32)
    for begin in range(0, split, tile):
        keys = number * split + begin + tl.arange(0, tile)
        values = _logits(q, key_cache, slots, row_positions, head, keys, num_keys, scale, slot_stride,
                         head_stride, group, dim, dim_padded, rows, window, is_upcast)  # fmt: skip
        new_top = tl.maximum(top, tl.max(values, 1))
        total = total * tl.exp(top - new_top) + tl.sum(tl.exp(values - new_top[:, None]), 1)
        top = new_top
    at = (number * num_heads + head) * rows + tl.arange(0, rows)
    tl.store(largest + at, top)
    tl.store(weight + at, total)


@triton.jit
def _sums(q, key_cache, slots, row_positions, log_normaliser, total, squares, num_keys, num_queries,
          num_heads, scale, slot_stride, head_stride, is_mean: tl.constexpr, group: tl.constexpr,
          dim: tl.constexpr, dim_padded: tl.constexpr, rows: tl.constexpr, tile: tl.constexpr,
          window: tl.constexpr, is_upcast: tl.constexpr):  # fmt: skip
    """Program (tile of keys): reduce heads, then sum over queries."""
    keys = tl.program_id(0) * tile + tl.arange(0, tile)
    row = tl.arange(0, rows)
    reduced = tl.zeros((rows, tile), tl.float32)
    for head in range(num_heads):
        values = _logits(q, key_cache, slots, row_positions, head, keys, num_keys, scale, slot_stride,
                         head_stride, group, dim, dim_padded, rows, window, is_upcast)  # fmt: skip
        mass = tl.exp(values - tl.load(log_normaliser + head * rows + row)[:, None])
        reduced = reduced + mass if is_mean else tl.maximum(reduced, mass)
    if is_mean:
        reduced = reduced / num_heads
    reduced = tl.where((row < num_queries)[:, None], reduced, 0.0)
    tl.store(total + keys, tl.sum(reduced, 0), mask=keys < num_keys)
    tl.store(squares + keys, tl.sum(reduced * reduced, 0), mask=keys < num_keys)
