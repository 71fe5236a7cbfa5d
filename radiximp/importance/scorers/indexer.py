"""The top-k choice that models with native sparse attention (DSA, NSA) make themselves."""

from __future__ import annotations

import torch


def indexer_mass(top_keys: torch.Tensor, num_keys: int) -> torch.Tensor:
    """Mass from a native sparse-attention indexer: its chosen keys share a query's mass evenly.

    top_keys: [num_queries, k] int64 key positions, -1 where fewer were chosen. Returns [num_queries, 1, num_keys]
    float32. Raises ValueError for a position outside the keys.
    """
    if top_keys.numel() and not -1 <= int(top_keys.min()) <= int(top_keys.max()) < num_keys:
        raise ValueError(f"top_keys: expected positions from -1 to {num_keys - 1}, got {int(top_keys.max())}")
    chosen = torch.zeros(len(top_keys), num_keys + 1, device=top_keys.device)
    chosen.scatter_(1, torch.where(top_keys < 0, num_keys, top_keys), 1.0)
    chosen = chosen[:, :num_keys]
    return (chosen / chosen.sum(-1, keepdim=True).clamp(min=1))[:, None]
