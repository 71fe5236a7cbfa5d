"""Attention on the CPU: only the new tokens' queries are computed, against the whole cached prefix.

A query's result is a function of its request's own tokens and of its position, and of nothing else: not
of the batch, not of how much of the prefix was cached, loaded back or prefilled in chunks
(`tiled_attention`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc

from radiximp.serving.attention_tap.layers import attention_window
from radiximp.serving.cpu.platform import ATTENTION_BACKEND
from radiximp.serving.cpu.tiled_attention import (
    TILE,
    HeadShape,
    TiledAttention,
    decode_is_like_extend,
)

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner


@dataclass(frozen=True)
class RequestSpan:
    """One request's share of a forward pass; rows are those of `q`, positions those of the sequence."""

    first_row: int
    num_new_tokens: int
    num_tokens: int  # cached prefix and new tokens
    slots: torch.Tensor  # [num_tokens padded] int64 KV slots; the padding repeats the last one

    @property
    def num_prefix_tokens(self) -> int:
        return self.num_tokens - self.num_new_tokens


class RadiximpCpuAttention(AttentionBackend):
    """Dense causal attention (MHA, GQA, MQA) with an optional sliding window, for decoder-only models.

    Owned by the scheduler's forward thread. An extend of n tokens after p costs O((n + TILE) * (p + n)).
    """

    def __init__(self, runner: ModelRunner) -> None:
        super().__init__()
        self.req_to_token_pool = runner.req_to_token_pool
        self.token_to_kv_pool = runner.token_to_kv_pool
        self.attention = TiledAttention()
        self.spans: list[RequestSpan] = []

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        lengths = forward_batch.seq_lens.tolist()
        if forward_batch.forward_mode.is_decode_or_idle():
            new_lengths = [1] * len(lengths)
        else:
            new_lengths = forward_batch.extend_seq_lens.tolist()
        self.spans = []
        first_row = 0
        for index, length, new in zip(
            forward_batch.req_pool_indices.tolist(), lengths, new_lengths, strict=True
        ):
            slots = self.req_to_token_pool.req_to_token[index, :length].to(torch.int64)
            padding = -length % TILE
            if padding:
                slots = torch.cat((slots, slots[-1:].expand(padding)))
            self.spans.append(RequestSpan(first_row, new, length, slots))
            first_row += new

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True) -> torch.Tensor:
        """Writes the new tokens' K and V, returns their attention [num_tokens, num_heads * v_head_dim]."""
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache, self.attention.extend)

    def forward_decode(self, q, k, v, layer, forward_batch, save_kv_cache=True) -> torch.Tensor:
        """As `forward_extend`, for one new token per request."""
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache, self.attention.decode)

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
        heads = HeadShape(layer.tp_q_head_num, layer.tp_k_head_num, layer.scaling, attention_window(layer))
        for span in self.spans:
            rows = slice(span.first_row, span.first_row + span.num_new_tokens)
            keys = key_cache.index_select(0, span.slots)
            values = value_cache.index_select(0, span.slots)
            output[rows] = attend(q[rows], keys, values, span.num_prefix_tokens, heads)
        return output.flatten(1)


def prepare(model: torch.nn.Module) -> None:
    """Measure for every layer's heads what decode steps rely on now, while the model loads."""
    from sglang.srt.layers.radix_attention import RadixAttention

    dtype = next(model.parameters()).dtype
    for layer in model.modules():
        if isinstance(layer, RadixAttention):
            group = layer.tp_q_head_num // layer.tp_k_head_num
            decode_is_like_extend(group, layer.qk_head_dim, layer.v_head_dim, dtype)


def register() -> None:
    """Make `--attention-backend radiximp_cpu` known."""
    from sglang.srt.arg_groups import choices
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    if ATTENTION_BACKEND not in choices.ATTENTION_BACKEND_CHOICES:
        choices.add_attention_backend_choices([ATTENTION_BACKEND])
    register_attention_backend(ATTENTION_BACKEND)(RadiximpCpuAttention)


def _require_supported(layer: RadixAttention) -> None:
    if layer.is_cross_attention or layer.attn_type == AttentionType.ENCODER_ONLY:
        raise NotImplementedError(f"{ATTENTION_BACKEND} attention serves decoder-only models")
    if layer.logit_cap:
        raise NotImplementedError(f"{ATTENTION_BACKEND} attention has no logit soft cap ({layer.logit_cap})")
