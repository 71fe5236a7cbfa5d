"""Every S-th decode step is observed, too: from a copy of the watched layers' queries that also CUDA graphs write.

A captured graph runs no Python when it is replayed, so the copy is part of the graph, and the keys are scored after the
replay: on an accelerator on a stream of its own, which the next forward waits for before it overwrites the copy or a slot.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.model_executor.model_runner import ModelRunner


class DecodeTap:
    """Owned by the forward thread. keep: one small copy per watched layer and step; score: every `every` steps."""

    def __init__(self, runner: ModelRunner, layers: list[RadixAttention], every: int) -> None:
        self._every = every
        self._layers = layers
        num_rows = runner.req_to_token_pool.req_to_token.shape[0]
        shape = (len(layers), num_rows, layers[0].tp_q_head_num, layers[0].qk_head_dim)
        self._queries = torch.zeros(shape, dtype=runner.dtype, device=runner.device)
        self._stream = torch.cuda.Stream() if self._queries.is_cuda else None
        self._scored: torch.cuda.Event | None = None

    def keep(self, index: int, q: torch.Tensor) -> None:
        """Copy a layer's queries, one row a request; what a graph's padding adds beyond the pool is dropped."""
        rows = min(len(q), self._queries.shape[1])
        self._queries[index, :rows].copy_(q[:rows].view(rows, *self._queries.shape[2:]))

    def before(self, forward_stream) -> None:
        """Another forward is about to be launched: it must not run ahead of a score that is still reading."""
        if self._scored is not None:
            forward_stream.wait_event(self._scored)
            self._scored = None

    def score(self, batch: ScheduleBatch, forward_stream, add_mass) -> None:
        """Count the newest queries of the requests that are due.

        add_mass(index, layer, request, end, positions [1], q [1, num_heads, head_dim]).
        """
        due = [(row, request) for row, request in enumerate(batch.reqs) if self._is_due(request)]
        if not due:
            return
        with self.scoring(forward_stream):
            for row, request in due:
                # Overlapped, the newest token is not in `output_ids` yet: then its own key is left out.
                end = len(request.origin_input_ids) + len(request.output_ids)
                positions = torch.full((1,), end - 1, dtype=torch.int64, device=self._queries.device)
                for index, layer in enumerate(self._layers):
                    add_mass(index, layer, request, end, positions, self._queries[index, row : row + 1])

    @contextmanager
    def scoring(self, after_stream=None):
        """Work inside goes to the scores' own stream, after what `after_stream` holds; the next forward waits for it."""
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            if after_stream is not None:
                self._stream.wait_stream(after_stream)
            yield
            self._scored = self._stream.record_event()

    def _is_due(self, request: Req) -> bool:
        prompt = getattr(request, "radiximp_prompt", None)
        return (
            prompt is not None
            and prompt.is_complete
            and not request.finished()
            and len(request.output_ids) % self._every == 0
        )
