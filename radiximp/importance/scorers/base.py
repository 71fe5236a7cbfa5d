"""What scorers share: who sees whom, logits under grouped heads, keys in blocks."""

from __future__ import annotations

import torch


def visible(positions: torch.Tensor, num_keys: int, window: int | None) -> torch.Tensor:
    """[num_queries, num_keys] bool: keys that a query sees."""
    keys = torch.arange(num_keys, device=positions.device)
    seen = keys <= positions[:, None]
    if window is not None:
        seen &= keys >= positions[:, None] - window
    return seen


def logits(q: torch.Tensor, keys: torch.Tensor, scale: float) -> torch.Tensor:
    """[num_queries, num_heads, num_keys] float32; query heads share their group's KV head (GQA)."""
    num_queries, num_heads, head_dim = q.shape
    num_kv_heads = keys.shape[1]
    rows = q.reshape(num_queries, num_kv_heads, num_heads // num_kv_heads, head_dim).permute(1, 0, 2, 3)
    rows = rows.reshape(num_kv_heads, -1, head_dim).float()
    products = torch.bmm(rows, keys.permute(1, 2, 0).float()) * scale
    products = products.view(num_kv_heads, num_queries, -1, keys.shape[0]).permute(1, 0, 2, 3)
    return products.reshape(num_queries, num_heads, keys.shape[0])


def blocked(values: torch.Tensor, block_tokens: int, fill: float) -> torch.Tensor:
    """[..., num_keys] -> [..., num_blocks, block_tokens], the last block filled up."""
    missing = -values.shape[-1] % block_tokens
    if missing:
        values = torch.nn.functional.pad(values, (0, missing), value=fill)
    return values.unflatten(-1, (-1, block_tokens))


def dealt(mass: torch.Tensor, seen: torch.Tensor, block_tokens: int) -> torch.Tensor:
    """Each block's mass [num_queries, num_heads, num_blocks] over those of its tokens that the query sees."""
    sizes = blocked(seen.float(), block_tokens, 0.0).sum(-1).clamp(min=1)
    tokens = (mass / sizes[:, None]).repeat_interleave(block_tokens, -1)[..., : seen.shape[1]]
    return tokens * seen[:, None]
