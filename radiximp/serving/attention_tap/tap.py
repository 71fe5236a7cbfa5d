"""Watches the last queries of each prompt in the sampled layers, and every S-th decode step where that is asked for.

The wrapped backend computes and returns what it would without us; queries and keys are only read. Work is launched in
the forward's own stream, tensors made there, and nothing waits for it here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from radiximp.config import PolicyConfig
from radiximp.importance.density import TokenMass
from radiximp.importance.scorers import SCORERS
from radiximp.importance.scorers.indexer import indexer_mass
from radiximp.importance.window import ObservationWindow
from radiximp.serving.attention_tap.decode import DecodeTap
from radiximp.serving.attention_tap.layers import attention_layers, attention_window, spread
from radiximp.serving.requests import is_warm

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.model_executor.model_runner import ModelRunner

# An observation is made in blocks of at least this many tokens, whatever the page size.
_MIN_BLOCK_TOKENS = 16


@dataclass
class Observation:
    """What one request's prompt attended to: densities [num_blocks] float32 on the host, NaN where unknown.

    copied: on an accelerator, when the copy that brings them there is done.
    """

    num_tokens: int
    block_tokens: int
    densities: torch.Tensor
    copied: torch.cuda.Event | None = None

    def values(self) -> torch.Tensor:
        """[num_blocks] float32, once they have arrived."""
        if self.copied is not None:
            self.copied.synchronize()
        return self.densities


@dataclass
class _Prompt:
    """One prompt while it is observed; kept on its request. `mass` is made in the forward's stream."""

    window: ObservationWindow
    end: int  # of what was computed so far
    mass: TokenMass | None = None
    is_complete: bool = False  # its last query was seen; decode steps may follow


@dataclass
class _Watch:
    """The chunk of a prompt that the running batch computes."""

    request: Req
    prompt: _Prompt
    row: int  # of the chunk's first query among the batch's
    first: int  # its position
    end: int
    watched: list[int]  # positions
    positions: torch.Tensor | None = None  # [num_watched] int64, on the device


class AttentionTap:
    """Owned by the forward thread. A layer that is not watched costs one look-up per pass."""

    def __init__(self, runner: ModelRunner, config: PolicyConfig, page_tokens: int) -> None:
        self._runner = runner
        self._config = config
        # The control sees the true values; the tree deals them to other nodes.
        self._scorer = "softmax" if config.importance_scorer == "shuffled" else config.importance_scorer
        self._block_tokens = page_tokens * -(-_MIN_BLOCK_TOKENS // page_tokens)
        layers = spread(attention_layers(runner), config.tap_layers)
        self._layers = layers
        # By identity: other layers may share a watched one's KV, and with it its number.
        self._index_of = {id(layer): index for index, layer in enumerate(layers)}
        self._watches: list[_Watch] = []
        self._decode = DecodeTap(runner, layers, config.tap_decode_every) if config.tap_decode_every else None
        for backend in {id(b): b for b in (runner.attn_backend, runner.decode_attn_backend) if b}.values():
            backend.forward = self._watched(backend.forward)

    @property
    def layer_ids(self) -> list[int]:
        """The watched layers."""
        return [layer.layer_id for layer in self._layers]

    def _watched(self, forward):
        def forward_and_watch(*args, **kwargs):
            output = forward(*args, **kwargs)
            if self._watches or self._decode is not None:
                self._look(*args, **kwargs)
            return output

        return forward_and_watch

    def _look(self, q=None, k=None, v=None, layer=None, forward_batch=None, *args, **kwargs) -> None:
        """As the backend was called; linear-attention layers of hybrid models name their arguments and have no q."""
        index = self._index_of.get(id(layer))
        if index is None or q is None:
            return
        if self._watches:
            self._observe(layer, q, kwargs.get("topk_indices"))
        elif self._decode is not None and forward_batch.forward_mode.is_decode():
            self._decode.keep(index, q)

    def begin(self, batch: ScheduleBatch, forward_stream=None) -> None:
        """A batch is about to run: note which of its queries end a prompt."""
        self._watches = []
        if self._decode is not None:
            self._decode.before(forward_stream)
        if not batch.forward_mode.is_extend_without_speculative():
            return
        decoding = {id(request) for request in batch.decoding_reqs or ()}
        row = 0
        for request, prefix, extend in zip(batch.reqs, batch.prefix_lens, batch.extend_lens, strict=True):
            is_seen = id(request) in decoding or getattr(request, "radiximp_observed", False)
            if not is_seen and not is_warm(request):  # nobody asked anything of a prompt that is pre-warmed
                self._watch(request, row, prefix, extend)
            row += extend

    def launched(self, batch: ScheduleBatch, forward_stream=None) -> None:
        """The batch was launched: look at its decode steps where that is due."""
        if self._decode is not None and batch.forward_mode.is_decode():
            self._decode.score(batch, forward_stream, self._add_step)

    def conclude(self, request: Req) -> Observation | None:
        """What was observed of a request, once: when its prompt is in the tree, or with decode steps when it ends."""
        prompt = getattr(request, "radiximp_prompt", None)
        if self._decode is not None and prompt is not None and prompt.is_complete and request.finished():
            with self._decode.scoring():
                self._leave(request, prompt)
        observation = getattr(request, "radiximp_observation", None)
        request.radiximp_observation = None
        return observation

    def _watch(self, request: Req, row: int, prefix: int, extend: int) -> None:
        num_tokens = len(request.full_untruncated_fill_ids)
        prompt = getattr(request, "radiximp_prompt", None)
        # A prompt that a retraction interrupted starts over: with more tokens, or from what is cached now.
        if prompt is None or prompt.window.num_tokens != num_tokens or prompt.end != prefix:
            config = self._config
            window = ObservationWindow(
                num_tokens, prefix, config.tap_queries, config.tap_query_stride, self._block_tokens
            )
            prompt = request.radiximp_prompt = _Prompt(window, prefix)
        prompt.end = prefix + extend
        watched = prompt.window.rows(prefix, prompt.end)
        if watched and prompt.window.num_blocks:
            self._watches.append(_Watch(request, prompt, row, prefix, prompt.end, watched))

    def _observe(self, layer: RadixAttention, q: torch.Tensor, top_keys: torch.Tensor | None) -> None:
        index = self._index_of[id(layer)]
        q = q.view(len(q), layer.tp_q_head_num, -1)
        window = attention_window(layer)
        for watch in self._watches:
            if watch.positions is None:
                watch.positions = torch.tensor(watch.watched).to(q.device, non_blocking=True)
            if watch.prompt.mass is None:
                watch.prompt.mass = TokenMass(watch.prompt.window, len(self._layers), q.device)
            mass, rows = watch.prompt.mass, watch.positions - watch.first + watch.row
            mass.limit(index, window)
            if self._config.importance_scorer != "indexer":
                self._add_mass(index, layer, watch, q[rows], window)
            elif top_keys is not None:
                mass.add(index, indexer_mass(top_keys[rows].long(), watch.end))
        if index == len(self._layers) - 1:
            self._finish()

    def _add_step(self, index: int, layer, request: Req, end: int, positions: torch.Tensor, q) -> None:
        watch = _Watch(request, request.radiximp_prompt, 0, end - 1, end, [], positions)
        self._add_mass(index, layer, watch, q, attention_window(layer))

    def _add_mass(self, index: int, layer, watch: _Watch, q: torch.Tensor, window: int | None) -> None:
        cache = self._runner.token_to_kv_pool.get_key_buffer(layer.layer_id)
        slots = self._runner.req_to_token_pool.req_to_token[watch.request.kv.req_pool_idx, : watch.end]
        mass, heads, scorer = watch.prompt.mass, self._config.tap_heads, self._scorer
        if scorer == "softmax" and q.is_cuda:
            from radiximp.importance.kernel import token_sums

            total, squares = token_sums(q, cache, slots, watch.positions, layer.scaling, window, heads)
            end = mass.window.end_key
            mass.add_sums(index, total[:end], squares[:end], len(q))
            return
        keys = cache.index_select(0, slots.long())
        scored = SCORERS[scorer](q, keys, watch.positions, self._block_tokens, layer.scaling, window)
        mass.add(index, scored, heads)

    def _finish(self) -> None:
        """All layers were seen: prompts that are complete are observed, or go on to be."""
        for watch in self._watches:
            if watch.end == watch.prompt.window.num_tokens:
                watch.prompt.is_complete = True
                watch.request.radiximp_observed = True
                if self._decode is None:
                    self._leave(watch.request, watch.prompt)
        self._watches = []

    def _leave(self, request: Req, prompt: _Prompt) -> None:
        """Leave an `Observation` on the request."""
        densities, copied = prompt.mass.block_densities(), None
        if densities.is_cuda:
            on_host = torch.empty(densities.shape, dtype=densities.dtype, pin_memory=True)
            densities, copied = on_host.copy_(densities, non_blocking=True), torch.cuda.Event()
            copied.record()
        request.radiximp_observation = Observation(
            prompt.window.num_tokens, self._block_tokens, densities, copied
        )
        request.radiximp_prompt = None
