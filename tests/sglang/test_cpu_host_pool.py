"""Host KV buffers without a driver: what goes device -> host -> device comes back bit for bit."""

from __future__ import annotations

import itertools

import pytest
import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost, get_mha_host_pool_cls
from sglang.srt.plugins.hook_registry import HookRegistry

from radiximp.serving.cpu import host_pool

NUM_LAYERS, NUM_HEADS, HEAD_DIM, NUM_SLOTS = 3, 2, 16, 256


@pytest.fixture(autouse=True, scope="module")
def _registered() -> None:
    host_pool.register()
    HookRegistry.apply_hooks()


def make_pools(page_size: int, layout: str) -> tuple[MHATokenToKVPool, MHATokenToKVPoolHost]:
    device = MHATokenToKVPool(
        size=NUM_SLOTS,
        page_size=page_size,
        dtype=torch.bfloat16,
        head_num=NUM_HEADS,
        head_dim=HEAD_DIM,
        layer_num=NUM_LAYERS,
        device="cpu",
        enable_memory_saver=False,
    )
    info = device._mha_buffer_info()
    host = get_mha_host_pool_cls(info)(
        info,
        host_to_device_ratio=2.0,
        host_size=0,
        page_size=page_size,
        layout=layout,
        device_capacity_tokens=NUM_SLOTS,
        start_layer=0,
        end_layer=NUM_LAYERS,
    )
    return device, host


def page_slots(page_size: int, pages: list[int]) -> torch.Tensor:
    return torch.cat([torch.arange(page * page_size, (page + 1) * page_size) for page in pages])


@pytest.mark.parametrize(
    ("page_size", "layout"), list(itertools.product((1, 16, 64), ("layer_first", "page_first_direct")))
)
def test_round_trip_is_bit_identical(page_size: int, layout: str) -> None:
    device, host = make_pools(page_size, layout)
    buffers = [*device.k_buffer, *device.v_buffer]
    generator = torch.Generator().manual_seed(page_size)
    for buffer in buffers:
        buffer.normal_(generator=generator)
    before = [buffer.clone() for buffer in buffers]
    on_device = page_slots(page_size, [3, 0, 2])
    on_host = page_slots(page_size, [4, 1, 6])

    host.backup_from_device_all_layer(device, on_host, on_device, "direct")
    for buffer in buffers:
        buffer[on_device] = 0
    for layer in range(NUM_LAYERS):
        host.load_to_device_per_layer(device, on_host, on_device, layer, "direct")

    for buffer, expected in zip(buffers, before, strict=True):
        assert torch.equal(buffer, expected)


@pytest.mark.parametrize("layout", ["layer_first", "page_first_direct"])
def test_storage_pages_round_trip(layout: str) -> None:
    """The flat page a storage backend writes and reads holds the same bytes."""
    page_size = 16
    device, host = make_pools(page_size, layout)
    for buffer in (*device.k_buffer, *device.v_buffer):
        buffer.normal_()
    on_device, on_host = page_slots(page_size, [1]), page_slots(page_size, [2])
    host.backup_from_device_all_layer(device, on_host, on_device, "direct")
    page = host.get_dummy_flat_data_page().copy_(host.get_data_page(2 * page_size, flat=True))
    host.set_from_flat_data_page(5 * page_size, page)
    moved = page_slots(page_size, [7])
    for layer in range(NUM_LAYERS):
        host.load_to_device_per_layer(device, page_slots(page_size, [5]), moved, layer, "direct")
        assert torch.equal(device.k_buffer[layer][moved], device.k_buffer[layer][on_device])
        assert torch.equal(device.v_buffer[layer][moved], device.v_buffer[layer][on_device])
