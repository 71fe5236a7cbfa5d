"""The attention itself, computed again for the watched queries."""

from __future__ import annotations

import torch

from radiximp.importance.scorers.base import logits, visible


def softmax(q, keys, positions, block_tokens, scale, window) -> torch.Tensor:
    """The attention itself: a query's masses sum to 1 in every head."""
    seen = visible(positions, len(keys), window)[:, None]
    return logits(q, keys, scale).masked_fill_(~seen, -torch.inf).softmax(-1)
