"""Gives what the tap saw to the tree: after a batch's results were processed, on all ranks at the same step.

By then each prompt of the batch is in the tree. Ranks have other heads, hence other densities: they are averaged over
the ranks that share the tree, in one collective per batch with a completed prompt and in none otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from sglang.srt.mem_cache.radix_cache import RadixKey

from radiximp.serving.attention_tap.tap import AttentionTap, Observation

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req

    from radiximp.serving.tree.core import ImportanceTreeCore


def harvest(core: ImportanceTreeCore, tap: AttentionTap, requests: list[Req]) -> None:
    """Fold what the tap observed of these requests into the tree."""
    concluded = [(request, tap.conclude(request)) for request in requests]
    waiting = [(request, observation) for request, observation in concluded if observation is not None]
    if not waiting:
        return
    densities = mean_over_ranks([observation.values() for _, observation in waiting], core.tree_group)
    for (request, observation), values in zip(waiting, densities, strict=True):
        core.observe(key_of(core, request, observation), pages_of(values, observation, core.page_size))


def key_of(core: ImportanceTreeCore, request: Req, observation: Observation) -> RadixKey:
    """The prompt that was observed, in its request's namespace."""
    return RadixKey(
        request.full_untruncated_fill_ids[: observation.num_tokens],
        request.extra_key,
        is_bigram=core.is_eagle,
        cache_salt=request.cache_salt,
    )


def pages_of(densities: torch.Tensor, observation: Observation, page_tokens: int) -> list[float]:
    """[num_pages]: each page has its block's density."""
    return densities.repeat_interleave(observation.block_tokens // page_tokens).tolist()


def mean_over_ranks(densities: list[torch.Tensor], group) -> list[torch.Tensor]:
    """The same on every rank; NaN where no rank knows. All ranks must call it at the same step."""
    if group is None or torch.distributed.get_world_size(group) == 1:
        return densities
    joined = torch.cat(densities)
    known = ~joined.isnan()
    sums = torch.stack((joined.nan_to_num(), known.float()))
    torch.distributed.all_reduce(sums, group=group)
    return list((sums[0] / sums[1]).split([len(values) for values in densities]))
