"""Upper bounds of blocks of keys from per-channel minima and maxima (Tang et al. 2024, "Quest")."""

from __future__ import annotations

import torch

from radiximp.importance.scorers.base import blocked, dealt, visible


def quest(q, keys, positions, block_tokens, scale, window) -> torch.Tensor:
    """Softmax over upper bounds of the blocks' logits from per-channel key minima and maxima (Tang et al. 2024)."""
    seen = visible(positions, len(keys), window)
    bounds = quest_bounds(q, keys, block_tokens, scale)
    sizes = blocked(seen.float(), block_tokens, 0.0).sum(-1)  # [num_queries, num_blocks]
    # A block that is seen in part counts in part, an unseen one not at all.
    return dealt((bounds + sizes.log()[:, None]).softmax(-1), seen, block_tokens)


def quest_bounds(q, keys, block_tokens: int, scale: float) -> torch.Tensor:
    """[num_queries, num_heads, num_blocks] float32: no logit of the block is above it (scale > 0)."""
    group = q.shape[1] // keys.shape[1]
    blocks = blocked(keys.permute(1, 2, 0).float(), block_tokens, torch.nan)
    low = blocks.nan_to_num(nan=torch.inf).amin(-1).repeat_interleave(group, 0)
    high = blocks.nan_to_num(nan=-torch.inf).amax(-1).repeat_interleave(group, 0)
    rows = q.float() * scale
    # Per channel the larger product; split by the query's sign it is two matrix products.
    return torch.einsum("qhd,hdb->qhb", rows.clamp(min=0), high) + torch.einsum(
        "qhd,hdb->qhb", rows.clamp(max=0), low
    )
