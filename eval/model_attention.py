"""Queries and keys of a real model's attention over whole texts, as the tap in the server sees them.

One pass over a text gives the queries of all its positions, so that a conversation's turns can be watched afterwards as if
each had been a request of its own.
"""

from __future__ import annotations

from pathlib import Path

import torch

from radiximp.importance.density import TokenMass
from radiximp.importance.scorers import SCORERS
from radiximp.importance.window import ObservationWindow
from radiximp.serving.attention_tap.layers import spread

_NAME = "radiximp_eval_capture"


class ModelAttention:
    """A model on the CPU in float32 (bfloat16 takes six times as long) whose chosen layers' queries and keys are kept."""

    def __init__(self, path: Path | str, num_layers: int = 4, keep_all: bool = False) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        ALL_ATTENTION_FUNCTIONS.register(_NAME, self._attend)
        self.tokenizer = AutoTokenizer.from_pretrained(str(path))
        self._model = AutoModelForCausalLM.from_pretrained(
            str(path), dtype=torch.float32, attn_implementation=_NAME
        )
        self._model.eval()
        self.depth = self._model.config.num_hidden_layers
        self.layers = self.spread(num_layers)
        self._kept = set(range(self.depth) if keep_all else self.layers)
        self._captured: dict[int, tuple[torch.Tensor, torch.Tensor, float]] = {}

    def spread(self, num_layers: int) -> list[int]:
        """Layers at even distances, as the server chooses them."""
        return spread(range(self.depth), num_layers)

    def _attend(self, module, query, key, value, attention_mask, scaling, **kwargs):
        if module.layer_idx in self._kept:
            self._captured[module.layer_idx] = (query[0].transpose(0, 1), key[0].transpose(0, 1), scaling)
        group = query.shape[1] // key.shape[1]
        output = torch.nn.functional.scaled_dot_product_attention(
            query,
            key.repeat_interleave(group, 1),
            value.repeat_interleave(group, 1),
            is_causal=True,
            scale=scaling,
        )
        return output.transpose(1, 2), None

    @torch.no_grad()
    def read(self, token_ids: list[int]) -> None:
        """Run the model over a text; what was kept of the one before is gone."""
        self._captured.clear()
        self._model.model(torch.tensor([token_ids]), use_cache=False)

    def observe(
        self,
        num_tokens: int,
        first_new: int,
        *,
        num_queries: int = 32,
        stride: int = 4,
        block_tokens: int = 16,
        scorer: str = "softmax",
        layers: list[int] | None = None,
        heads: str = "mean",
    ) -> TokenMass:
        """What the request that ends at `num_tokens` of the text, with `first_new` cached, attends to."""
        layers = self.layers if layers is None else layers
        window = ObservationWindow(num_tokens, first_new, num_queries, stride, block_tokens)
        tokens = TokenMass(window, len(layers))
        positions = torch.tensor(window.rows(first_new, num_tokens))
        for index, layer in enumerate(layers):
            q, keys, scale = self._captured[layer]
            scored = SCORERS[scorer](q[positions], keys[:num_tokens], positions, block_tokens, scale, None)
            tokens.add(index, scored, heads)
        return tokens
