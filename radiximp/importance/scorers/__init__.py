"""How much attention a token's key gets from a query: the true mass, and what can be had without computing it.

Every scorer has one signature and knows nothing of requests, slots or trees:

    scorer(q, keys, positions, block_tokens, scale, window) -> mass

    q [num_queries, num_heads, head_dim], keys [num_keys, num_kv_heads, head_dim], any float dtype;
    positions [num_queries] int64: a query sees the keys up to its own position;
    scale: of the logits; window: positions before its own that a query sees, None for all;
    mass [num_queries, num_heads, num_keys] float32, non-negative; 0 where a query sees nothing.

The scorers of whole blocks deal a block's mass out to its tokens evenly.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from radiximp.importance.scorers.blast import blast
from radiximp.importance.scorers.quest import quest
from radiximp.importance.scorers.softmax import softmax

Scorer = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int, float, "int | None"], torch.Tensor]

SCORERS: dict[str, Scorer] = {"softmax": softmax, "quest": quest, "blast": blast}
