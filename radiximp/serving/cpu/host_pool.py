"""HiCache's host tier when the "device" is host memory too: plain buffers and torch copies."""

from __future__ import annotations

import torch


def allocate(dims, dtype, device, pin_memory, allocator, registration_granularity_bytes=None) -> torch.Tensor:
    """A buffer of the storage backend's allocator, not registered with any driver."""
    return allocator.allocate(dims, dtype=dtype, device=device)


def transfer_kv_direct(*, src_layers, dst_layers, src_indices, dst_indices, page_size) -> None:
    """Copy token rows between per-layer buffers `[num_tokens, ...]`; both sides are layer first."""
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices]


def _pages(indices, page_size):
    return indices[::page_size] // page_size


def transfer_kv_per_layer_direct_pf_lf(
    *, src_ptrs, dst_ptrs, src_indices, dst_indices, layer_id, page_size
) -> None:
    """Load one layer: host `[num_pages, num_layers, page_size, ...]` to device rows `[num_tokens, ...]`."""
    pages = _pages(src_indices, page_size)
    for source, target in zip(src_ptrs, dst_ptrs, strict=True):
        target[dst_indices] = source[pages, layer_id].flatten(0, 1)


def transfer_kv_all_layer_direct_lf_pf(*, src_ptrs, dst_ptrs, src_indices, dst_indices, page_size) -> None:
    """Back up all layers: device rows of each layer to host `[num_pages, num_layers, page_size, ...]`.

    `src_ptrs` lists the layers of the first destination, then those of the second (K, then V).
    """
    pages = _pages(dst_indices, page_size)
    num_layers = len(src_ptrs) // len(dst_ptrs)
    for i, source in enumerate(src_ptrs):
        rows = source[src_indices]
        dst_ptrs[i // num_layers][pages, i % num_layers] = rows.unflatten(0, (-1, page_size))


def register() -> None:
    from sglang.srt.mem_cache.pool_host import common, mha

    common.ALLOC_MEMORY_FUNCS["cpu"] = allocate
    for function in (
        transfer_kv_direct,
        transfer_kv_per_layer_direct_pf_lf,
        transfer_kv_all_layer_direct_lf_pf,
    ):
        setattr(mha, function.__name__, function)
