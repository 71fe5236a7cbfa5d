"""Which layers are watched, and why a model cannot be tapped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import torch
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention

if TYPE_CHECKING:
    from sglang.srt.model_executor.model_runner import ModelRunner

T = TypeVar("T")


def why_untappable(runner: ModelRunner, scorer: str) -> str | None:
    """The reason why this runner's attention cannot be read; None if it can."""
    if runner.server_args.pp_size > 1:
        return "pipeline stages see different layers"
    if (getattr(runner.server_args, "attn_cp_size", 1) or 1) > 1:
        return "context parallelism shards the keys"
    if scorer == "indexer":
        return None if _has_indexer(runner) else "the model has no native top-k indexer"
    if runner.model_config.attention_arch.name == "MLA":
        return "keys of multi-head latent attention are compressed"
    if runner.kv_cache_dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"keys are stored as {runner.kv_cache_dtype}"
    if not attention_layers(runner):
        return "the model has no attention layer of the decoder kind"
    return None


def _has_indexer(runner: ModelRunner) -> bool:
    return any(type(module).__name__ == "Indexer" for module in runner.model.modules())


def attention_layers(runner: ModelRunner) -> list[RadixAttention]:
    """The decoder layers whose whole prefix is attended to; those with a window where there is no other."""
    layers = [
        module
        for module in runner.model.modules()
        if isinstance(module, RadixAttention)
        and module.attn_type == AttentionType.DECODER
        and not module.is_cross_attention
    ]
    # Layers that share another's KV carry its number: the first of each is enough.
    layers = list({layer.layer_id: layer for layer in reversed(layers)}.values())
    whole = [layer for layer in layers if attention_window(layer) is None]
    return sorted(whole or layers, key=lambda layer: layer.layer_id)


def attention_window(layer: RadixAttention) -> int | None:
    """How many positions before its own a query sees; None for all of them."""
    size = layer.sliding_window_size
    return None if size is None or size < 0 else size


def spread(layers: Sequence[T], num_wanted: int) -> list[T]:
    """`num_wanted` of them at even distances over the depth, all if there are fewer."""
    num_wanted = min(num_wanted, len(layers))
    return [layers[int((i + 0.5) * len(layers) / num_wanted)] for i in range(num_wanted)]
