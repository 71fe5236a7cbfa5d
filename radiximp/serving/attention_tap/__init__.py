"""Attention -> request -> node: reads the served model's own attention and folds it into the tree's nodes.

`tap.py` watches sampled layers during a forward pass and belongs to the forward thread; `harvest.py` gives what it saw
to the tree, on all ranks at the same step; `layers.py` chooses the layers. An observation belongs to its request, never
to KV slots: it reaches the nodes that the request's own tokens and namespace lead to, and slots may be reused as they like.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from radiximp.config import PolicyConfig

if TYPE_CHECKING:
    from sglang.srt.model_executor.model_runner import ModelRunner

    from radiximp.serving.attention_tap.tap import AttentionTap

logger = logging.getLogger(__name__)

# A process runs one scheduler with one target model; None where attention is not observed.
current: AttentionTap | None = None
# Which backend is tapped, and why none is; both None before a model is there.
backend: str | None = None
why_none: str | None = None


def install(runner: ModelRunner) -> None:
    """Tap the runner's attention as its server is configured; say once what is watched, or why nothing is."""
    global current, backend, why_none
    from radiximp.serving.attention_tap.layers import why_untappable
    from radiximp.serving.attention_tap.tap import AttentionTap

    current = backend = why_none = None
    config = PolicyConfig.from_mapping(runner.server_args.radix_eviction_policy_config)
    if config.importance_scorer == "structural":
        why_none = "importance_scorer is structural"
        return
    reason = why_untappable(runner, config.importance_scorer)
    if reason is not None:
        logger.warning("radiximp: attention is not observed (%s); importance is structural", reason)
        why_none = reason
        return
    current = AttentionTap(runner, config, runner.page_size)
    backend = type(runner.attn_backend).__name__
    logger.info(
        "radiximp: scorer %s observes layers %s of %s",
        config.importance_scorer,
        current.layer_ids,
        backend,
    )
