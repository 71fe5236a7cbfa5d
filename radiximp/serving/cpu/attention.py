"""Attention on the CPU: only the new tokens' queries are computed, against the whole cached prefix.

A query's result is a function of its request's own tokens and of its position, and of nothing else: not
of the batch, not of how much of the prefix was cached, loaded back or prefilled in chunks. To get that,
queries are computed in tiles of `TILE` that are aligned to absolute positions, and every shape that
reaches the kernel depends on the tile's position alone; a tile that is only partly new is padded.
`AttentionTap` is the place to read queries and KV slots from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from torch.nn.functional import scaled_dot_product_attention

from radiximp.serving.cpu.causal_mask import CausalMask
from radiximp.serving.cpu.platform import ATTENTION_BACKEND

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner

# Positions per query tile. A larger one makes a cold prefill a little faster (15 % at 128) and a
# short suffix on a long prefix twice as slow.
TILE = 64
# A decode step's keys are padded to a multiple of the kernel's vector width, or else it would sum the
# last few in another order than a prefill of the same tokens does.
DECODE_ALIGNMENT = 16


@dataclass(frozen=True)
class RequestSpan:
    """One request's share of a forward pass; rows are those of `q`, positions those of the sequence."""

    first_row: int
    num_new_tokens: int
    num_tokens: int  # cached prefix and new tokens
    slots: torch.Tensor  # [num_tokens padded] int64 KV slots; the padding repeats the last one
    req_pool_index: int

    @property
    def num_prefix_tokens(self) -> int:
        return self.num_tokens - self.num_new_tokens


class AttentionTap(Protocol):
    """Reads attention's inputs; must not change them. Called once per layer, request and forward pass."""

    def observe(
        self, layer: RadixAttention, span: RequestSpan, queries: torch.Tensor, keys: torch.Tensor
    ) -> None:
        """`queries` [num_new_tokens, num_heads, head_dim], `keys` [num_tokens, num_kv_heads, head_dim]."""


class RadiximpCpuAttention(AttentionBackend):
    """Dense causal attention (MHA, GQA, MQA) with an optional sliding window, for decoder-only models.

    Owned by the scheduler's forward thread. An extend of n tokens after p costs O((n + TILE) * (p + n)).
    """

    tap: AttentionTap | None = None

    def __init__(self, runner: ModelRunner) -> None:
        super().__init__()
        self.req_to_token_pool = runner.req_to_token_pool
        self.token_to_kv_pool = runner.token_to_kv_pool
        self.mask = CausalMask(TILE)
        self.spans: list[RequestSpan] = []

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        lengths = forward_batch.seq_lens.tolist()
        if forward_batch.forward_mode.is_decode_or_idle():
            new_lengths, alignment = [1] * len(lengths), DECODE_ALIGNMENT
        else:
            new_lengths, alignment = forward_batch.extend_seq_lens.tolist(), TILE
        self.spans = []
        first_row = 0
        for index, length, new in zip(
            forward_batch.req_pool_indices.tolist(), lengths, new_lengths, strict=True
        ):
            slots = self.req_to_token_pool.req_to_token[index, :length].to(torch.int64)
            padding = -length % alignment
            if padding:
                slots = torch.cat((slots, slots[-1:].expand(padding)))
            self.spans.append(RequestSpan(first_row, new, length, slots, index))
            first_row += new

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True) -> torch.Tensor:
        """Attention of the new tokens; writes their K and V first. Returns [num_tokens, num_heads * v_head_dim]."""
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache, self._extend)

    def forward_decode(self, q, k, v, layer, forward_batch, save_kv_cache=True) -> torch.Tensor:
        """As `forward_extend`, for one new token per request."""
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache, self._decode)

    def support_triton(self) -> bool:
        return False

    def _forward(self, q, k, v, layer, forward_batch, save_kv_cache, attend) -> torch.Tensor:
        _require_supported(layer)
        if save_kv_cache and k is not None:
            self.token_to_kv_pool.set_kv_buffer(layer, KVWriteLoc(forward_batch.out_cache_loc, None), k, v)
        key_cache = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
        value_cache = self.token_to_kv_pool.get_value_buffer(layer.layer_id)
        q = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        output = q.new_empty(q.shape[0], layer.tp_q_head_num, layer.v_head_dim)
        for span in self.spans:
            rows = slice(span.first_row, span.first_row + span.num_new_tokens)
            keys = key_cache.index_select(0, span.slots)
            values = value_cache.index_select(0, span.slots)
            if self.tap is not None:
                self.tap.observe(layer, span, q[rows], keys[: span.num_tokens])
            output[rows] = attend(q[rows], keys, values, span, layer)
        return output.flatten(1)

    def _extend(self, q, keys, values, span: RequestSpan, layer) -> torch.Tensor:
        """[num_new_tokens, num_heads, v_head_dim] of one request, tile by tile."""
        first_tile = span.num_prefix_tokens // TILE
        num_tiles = -(-span.num_tokens // TILE) - first_tile
        num_kv_heads, group = layer.tp_k_head_num, layer.tp_q_head_num // layer.tp_k_head_num
        offset = span.num_prefix_tokens - first_tile * TILE
        padded = q.new_zeros(num_tiles * TILE, *q.shape[1:])
        padded[offset : offset + span.num_new_tokens] = q
        # Query heads that share a KV head become rows of one problem, so that K and V are not repeated.
        tiles = padded.view(num_tiles, TILE, num_kv_heads, group, -1).permute(0, 2, 3, 1, 4)
        tiles = tiles.reshape(num_tiles, 1, num_kv_heads, group * TILE, -1)
        keys, values = keys.transpose(0, 1)[None], values.transpose(0, 1)[None]
        window = _window(layer)
        output = []
        for i, tile in enumerate(tiles):
            begin = (first_tile + i) * TILE
            first_key = 0 if window is None else max(0, begin - window) // TILE * TILE
            seen = slice(first_key, begin + TILE)
            mask = self.mask.tile(begin - first_key, group, window, q.dtype)
            output.append(
                scaled_dot_product_attention(
                    tile, keys[:, :, seen], values[:, :, seen], attn_mask=mask, scale=layer.scaling
                )
            )
        result = torch.cat(output).view(num_tiles, num_kv_heads, group, TILE, -1)
        result = result.permute(0, 3, 1, 2, 4).reshape(num_tiles * TILE, layer.tp_q_head_num, -1)
        return result[offset : offset + span.num_new_tokens]

    def _decode(self, q, keys, values, span: RequestSpan, layer) -> torch.Tensor:
        """[1, num_heads, v_head_dim] of one request's newest token."""
        window = _window(layer)
        position = span.num_tokens - 1
        begin = position // DECODE_ALIGNMENT * DECODE_ALIGNMENT
        # The same first key as the extend of this position, hence the same order of summation.
        tile_begin = position // TILE * TILE
        first_key = 0 if window is None else max(0, tile_begin - window) // TILE * TILE
        group = layer.tp_q_head_num // layer.tp_k_head_num
        mask = self.mask.row(
            position - begin, begin - first_key, DECODE_ALIGNMENT, group, window, q.dtype
        )
        output = scaled_dot_product_attention(
            q.view(1, layer.tp_k_head_num, -1, layer.qk_head_dim),
            keys[first_key:].transpose(0, 1)[None],
            values[first_key:].transpose(0, 1)[None],
            attn_mask=mask,
            scale=layer.scaling,
        )
        return output.view(1, layer.tp_q_head_num, -1)


def register() -> None:
    """Make `--attention-backend radiximp_cpu` known."""
    from sglang.srt.arg_groups import choices
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    if ATTENTION_BACKEND not in choices.ATTENTION_BACKEND_CHOICES:
        choices.add_attention_backend_choices([ATTENTION_BACKEND])
    register_attention_backend(ATTENTION_BACKEND)(RadiximpCpuAttention)


def _window(layer: RadixAttention) -> int | None:
    """How many positions before its own a query sees; None for all of them."""
    size = layer.sliding_window_size
    return None if size is None or size < 0 else size


def _require_supported(layer: RadixAttention) -> None:
    if layer.is_cross_attention or layer.attn_type == AttentionType.ENCODER_ONLY:
        raise NotImplementedError(f"{ATTENTION_BACKEND} attention serves decoder-only models")
    if layer.logit_cap:
        raise NotImplementedError(f"{ATTENTION_BACKEND} attention has no logit soft cap ({layer.logit_cap})")
