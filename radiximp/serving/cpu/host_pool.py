"""HiCache's host tier when the "device" is host memory too: plain buffers and torch copies."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from sglang.srt.mem_cache.pool_host.common import ALLOC_MEMORY_FUNCS, HostTensorAllocator
from sglang.srt.plugins.hook_registry import HookRegistry, HookType


def allocate(
    dims: tuple[int, ...],
    dtype: torch.dtype,
    device: str,
    pin_memory: bool,
    allocator: HostTensorAllocator,
    registration_granularity_bytes: int | None = None,
) -> torch.Tensor:
    """A host buffer that no driver knows. Pages are committed when first written, so start-up is quick."""
    if type(allocator) is HostTensorAllocator:
        return torch.empty(dims, dtype=dtype, device=device)
    return allocator.allocate(dims, dtype=dtype, device=device)  # a storage backend's own memory


def transfer_kv_direct(
    *,
    src_layers: Sequence[torch.Tensor],
    dst_layers: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
) -> None:
    """Copy token rows between per-layer buffers `[num_tokens, ...]`; both sides are layer first."""
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices]


def _pages(indices: torch.Tensor, page_size: int) -> torch.Tensor:
    """Page numbers of token indices that come in whole pages, in order."""
    return indices[::page_size] // page_size


def transfer_kv_per_layer_direct_pf_lf(
    *,
    src_ptrs: Sequence[torch.Tensor],
    dst_ptrs: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    layer_id: int,
    page_size: int,
) -> None:
    """Load one layer: host `[num_pages, num_layers, page_size, ...]` to device rows `[num_tokens, ...]`."""
    pages = _pages(src_indices, page_size)
    for source, target in zip(src_ptrs, dst_ptrs, strict=True):
        target[dst_indices] = source[pages, layer_id].flatten(0, 1)


def transfer_kv_all_layer_direct_lf_pf(
    *,
    src_ptrs: Sequence[torch.Tensor],
    dst_ptrs: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
) -> None:
    """Back up all layers: device rows of each layer to host `[num_pages, num_layers, page_size, ...]`.

    `src_ptrs` lists the layers of the first destination, then those of the second (K, then V).
    """
    pages = _pages(dst_indices, page_size)
    num_layers = len(src_ptrs) // len(dst_ptrs)
    for i, source in enumerate(src_ptrs):
        rows = source[src_indices]
        dst_ptrs[i // num_layers][pages, i % num_layers] = rows.unflatten(0, (-1, page_size))


def register() -> None:
    """`mha` imports these names from `sgl_kernel` on CUDA only; elsewhere they are missing."""
    from sglang.srt.mem_cache.pool_host import mha

    ALLOC_MEMORY_FUNCS["cpu"] = allocate
    for function in (
        transfer_kv_direct,
        transfer_kv_per_layer_direct_pf_lf,
        transfer_kv_all_layer_direct_lf_pf,
    ):
        setattr(mha, function.__name__, function)
    # The pages a storage backend reads into are allocated by the pool itself, pinned by default.
    HookRegistry.register(
        "sglang.srt.mem_cache.pool_host.base.HostKVCache.__init__", _without_pinning, HookType.BEFORE
    )


def _without_pinning(*args, **kwargs) -> tuple[tuple, dict]:
    return args, {**kwargs, "pin_memory": False}
