"""What block-skipping attention kernels see in passing: how far a block's largest logit stays behind."""

from __future__ import annotations

import torch

from radiximp.importance.scorers.base import blocked, dealt, logits, visible


def blast(q, keys, positions, block_tokens, scale, window) -> torch.Tensor:
    """exp(a block's largest logit - the largest so far), as block-skipping kernels see it in passing."""
    seen = visible(positions, len(keys), window)
    margins = blast_margins(q, keys, seen, block_tokens, scale)
    return dealt(margins.exp(), seen, block_tokens)


def blast_margins(q, keys, seen, block_tokens: int, scale: float) -> torch.Tensor:
    """[num_queries, num_heads, num_blocks] float32 <= 0: local maximum minus running maximum, first block first.

    -inf for a block that the query does not see.
    """
    masked = logits(q, keys, scale).masked_fill_(~seen[:, None], -torch.inf)
    local = blocked(masked, block_tokens, -torch.inf).amax(-1)
    margins = local - local.cummax(-1).values
    return margins.masked_fill_(local == -torch.inf, -torch.inf)
