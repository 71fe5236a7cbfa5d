"""The top-k choice that models with native sparse attention (DSA, NSA) make themselves."""

from __future__ import annotations

import torch


def indexer_mass(top_keys: torch.Tensor, num_keys: int) -> torch.Tensor:
    """Mass from a native sparse-attention indexer: its chosen keys share a query's mass evenly.

    top_keys: [num_queries, k] int64 key positions; one outside the keys, as -1 where fewer were chosen, counts for none (to
    check would wait for the accelerator). Returns [num_queries, 1, num_keys] float32.
    """
    chosen = torch.zeros(len(top_keys), num_keys + 1, device=top_keys.device)
    is_key = (top_keys >= 0) & (top_keys < num_keys)
    chosen.scatter_(1, torch.where(is_key, top_keys, num_keys), 1.0)
    chosen = chosen[:, :num_keys]
    return (chosen / chosen.sum(-1, keepdim=True).clamp(min=1))[:, None]
