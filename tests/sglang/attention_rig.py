"""Attention backends on a KV pool without a model: the same requests through ours and SGLang's torch_native."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from radiximp.serving.cpu.attention import RadiximpCpuAttention


@dataclass(frozen=True)
class Shape:
    num_heads: int = 9
    num_kv_heads: int = 3
    head_dim: int = 64
    window: int = -1


class Rig:
    """A pool of random KV whose slots are handed out in shuffled pages, and both backends on it."""

    def __init__(self, shape: Shape, num_slots: int, max_tokens: int, page_size: int = 1, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.shape = shape
        self.pool = MHATokenToKVPool(
            size=num_slots,
            page_size=page_size,
            dtype=torch.bfloat16,
            head_num=shape.num_kv_heads,
            head_dim=shape.head_dim,
            layer_num=1,
            device="cpu",
            enable_memory_saver=False,
        )
        for buffer in (self.pool.get_key_buffer(0), self.pool.get_value_buffer(0)):
            buffer.normal_(generator=self.generator)
        pages = torch.randperm(num_slots // page_size, generator=self.generator)
        slots = (pages[:, None] * page_size + torch.arange(page_size)).flatten()
        num_requests = num_slots // max_tokens
        self.req_to_token = slots[: num_requests * max_tokens].view(num_requests, max_tokens).int()
        runner = SimpleNamespace(
            device="cpu",
            req_to_token_pool=SimpleNamespace(req_to_token=self.req_to_token),
            token_to_kv_pool=self.pool,
        )
        self.ours = RadiximpCpuAttention(runner)
        self.torch_native = TorchNativeAttnBackend(runner)
        self.layer = RadixAttention(
            num_heads=shape.num_heads,
            head_dim=shape.head_dim,
            scaling=shape.head_dim**-0.5,
            num_kv_heads=shape.num_kv_heads,
            layer_id=0,
            sliding_window_size=shape.window,
        )

    def random(self, num_tokens: int, num_heads: int) -> torch.Tensor:
        """[num_tokens, num_heads * head_dim] bfloat16."""
        size = (num_tokens, num_heads * self.shape.head_dim)
        return torch.randn(size, generator=self.generator).to(torch.bfloat16)

    def batch(self, requests: list[int], lengths: list[int], prefixes: list[int], mode: ForwardMode):
        """What a backend reads of a ForwardBatch: `lengths` tokens of which `prefixes` are cached."""
        slots = [
            self.req_to_token[i, p:n].long() for i, n, p in zip(requests, lengths, prefixes, strict=True)
        ]
        return SimpleNamespace(
            forward_mode=mode,
            req_pool_indices=torch.tensor(requests),
            seq_lens=torch.tensor(lengths),
            extend_prefix_lens=torch.tensor(prefixes),
            extend_seq_lens=torch.tensor(lengths) - torch.tensor(prefixes),
            out_cache_loc=torch.cat(slots),
            encoder_lens=None,
        )

    def run(self, backend, batch, q, k, v) -> torch.Tensor:
        backend.init_forward_metadata(batch)
        forward = backend.forward_decode if batch.forward_mode.is_decode() else backend.forward_extend
        return forward(q, k, v, self.layer, batch)

    def reference(self, batch, q: torch.Tensor) -> torch.Tensor:
        """float64 attention over what the pool holds now, one query at a time in one expression per request."""
        shape, rows, first = self.shape, [], 0
        keys, values = self.pool.get_key_buffer(0).double(), self.pool.get_value_buffer(0).double()
        for i, length, prefix in zip(
            batch.req_pool_indices.tolist(),
            batch.seq_lens.tolist(),
            batch.extend_prefix_lens.tolist(),
            strict=True,
        ):
            num_new = length - prefix
            slots = self.req_to_token[i, :length].long()
            group = shape.num_heads // shape.num_kv_heads
            k = keys[slots].repeat_interleave(group, 1)
            v = values[slots].repeat_interleave(group, 1)
            query = q[first : first + num_new].double().view(num_new, shape.num_heads, shape.head_dim)
            scores = torch.einsum("qhd,khd->hqk", query, k) * self.layer.scaling
            position, key = torch.arange(prefix, length)[:, None], torch.arange(length)[None]
            hidden = key > position
            if shape.window >= 0:
                hidden |= key < position - shape.window
            weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
            rows.append(torch.einsum("hqk,khd->qhd", weights, v).flatten(1))
            first += num_new
        return torch.cat(rows)
