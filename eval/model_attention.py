"""Queries and keys of a real model's attention over whole texts, as the tap in the server sees them.

One pass over a text gives the queries of all its positions, so that a conversation's turns can be watched afterwards as if
each had been a request of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
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
        # [num_tokens, num_tokens] bool, who sees whom; None: every token sees all before it.
        self._seen: torch.Tensor | None = None

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
            attn_mask=self._seen,
            is_causal=self._seen is None,
            scale=scaling,
        )
        return output.transpose(1, 2), None

    @torch.no_grad()
    def read(self, token_ids: list[int]) -> None:
        """Run the model over a text; what was kept of the one before is gone."""
        self._captured.clear()
        self._model.model(torch.tensor([token_ids]), use_cache=False)

    @torch.no_grad()
    def read_branches(self, prefix: list[int], branches: list[list[int]]) -> Iterator[int]:
        """One pass over a prefix and each of its continuations; yields each one's number, and until the next `observe` sees the
        prefix with that continuation as if it had been read alone."""
        ids, positions, owner = list(prefix), list(range(len(prefix))), [-1] * len(prefix)
        for number, branch in enumerate(branches):
            ids += branch
            positions += range(len(prefix), len(prefix) + len(branch))
            owner += [number] * len(branch)
        owners = torch.tensor(owner)
        is_before = torch.ones(len(ids), len(ids)).tril().bool()
        self._seen = is_before & ((owners[None] == -1) | (owners[None] == owners[:, None]))
        self._captured.clear()
        try:
            self._model.model(torch.tensor([ids]), position_ids=torch.tensor([positions]), use_cache=False)
        finally:
            self._seen = None
        whole = self._captured
        for number in range(len(branches)):
            rows = torch.nonzero((owners == -1) | (owners == number))[:, 0]
            self._captured = {
                layer: (q[rows], keys[rows], scale) for layer, (q, keys, scale) in whole.items()
            }
            yield number
        self._captured = {}

    def masses(self, positions: list[int], scorer: str, layer: int, block_tokens: int) -> torch.Tensor:
        """[num_queries, num_keys] mean over heads of what the queries at these positions give to each token; keys end
        with the last position."""
        q, keys, scale = self._captured[layer]
        rows = torch.tensor(positions)
        return SCORERS[scorer](q[rows], keys[: positions[-1] + 1], rows, block_tokens, scale, None).mean(1)

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
