"""A program: imports SGLang with some modules taken from another folder and checks what the patches add.

    python patched_modules.py SITE_PACKAGES_COPY [CHECK ...]

Prints `NAME ok`, `NAME skipped: why` or `NAME failed: error` per check. It is a process of its own because
the modules have to be replaced before anything imports them.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from array import array
from pathlib import Path

SITE_COPY = Path(sys.argv[1])


class CopiedModules(importlib.abc.MetaPathFinder):
    """Finds sglang's modules in SITE_COPY where a file is there; leaves all others to the usual finders."""

    def find_spec(self, fullname, path, target=None):
        file = SITE_COPY.joinpath(*fullname.split(".")).with_suffix(".py")
        if fullname.startswith("sglang.") and file.is_file():
            return importlib.util.spec_from_file_location(fullname, file)
        return None


sys.meta_path.insert(0, CopiedModules())

import torch  # noqa: E402

NUM_LAYERS, NUM_HEADS, HEAD_DIM, PAGE_SIZE = 3, 2, 4, 4


def check_register_eviction_policy() -> None:
    from sglang.srt.mem_cache import utils

    class Strategy:
        def __init__(self, weight=1.0):
            self.weight = weight

    utils.register_eviction_policy("Mine", Strategy)
    assert utils.get_eviction_strategy("MINE", {"weight": 2.0}).weight == 2.0
    assert isinstance(utils.get_eviction_strategy("mine"), Strategy)
    for taken_or_empty in ("mine", "LRU", "", "  "):
        try:
            utils.register_eviction_policy(taken_or_empty, Strategy)
        except ValueError as error:
            assert "already registered" in str(error) or "must not be empty" in str(error)
        else:
            raise AssertionError(f"{taken_or_empty!r} was accepted")
    assert type(utils.get_eviction_strategy("lru")).__name__ == "LRUStrategy"


def host_pool(layout: str, pin_memory: bool):
    """A real MHA host pool of 8 pages, and K and V of a device pool of 7 in CPU memory, values distinct."""
    from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

    shape = (7 * PAGE_SIZE, NUM_HEADS, HEAD_DIM)
    values = torch.arange(2 * NUM_LAYERS * shape[0] * NUM_HEADS * HEAD_DIM, dtype=torch.float32)
    k, v = values.reshape(2, NUM_LAYERS, *shape)
    pointers = [torch.tensor([layer.data_ptr() for layer in side], dtype=torch.uint64) for side in (k, v)]
    buffers = KVBuffers(
        k=tuple(k), v=tuple(v), k_data_ptrs=pointers[0], v_data_ptrs=pointers[1], layout=KVBufferLayout.NHD
    )
    info = MHABufferInfo(
        buffers=buffers,
        page_size=PAGE_SIZE,
        head_num=NUM_HEADS,
        head_dim=HEAD_DIM,
        v_head_dim=HEAD_DIM,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    pool = MHATokenToKVPoolHost(
        buffer_info=info,
        host_to_device_ratio=1.0,
        host_size=0,
        page_size=PAGE_SIZE,
        layout=layout,
        pin_memory=pin_memory,
        device_capacity_tokens=7 * PAGE_SIZE,
        start_layer=0,
        end_layer=NUM_LAYERS,
    )
    return pool, k, v


def check_cpu_host_buffers() -> None:
    for layout in ("layer_first", "page_first", "page_first_direct"):
        pool, _k, _v = host_pool(layout, pin_memory=True)
        assert pool.kv_buffer.device.type == "cpu" and not pool.kv_buffer.is_pinned()
        pool.destroy()


def rows_of(pages: list[int]) -> torch.Tensor:
    return torch.tensor([page * PAGE_SIZE + i for page in pages for i in range(PAGE_SIZE)])


def check_cpu_direct_copies() -> None:
    """Backup, wipe, load back through the pool: out of order, scattered pages, both layouts."""
    for layout in ("layer_first", "page_first_direct"):
        pool, k, v = host_pool(layout, pin_memory=False)
        pool.kv_buffer.fill_(-1)
        before_k, before_v = k.clone(), v.clone()
        device_pages, host_pages, load_pages = [5, 1, 2], [0, 6, 3], [4, 6, 1]
        pool.backup_from_device_all_layer(None, rows_of(host_pages), rows_of(device_pages), "direct")
        assert torch.equal(k, before_k) and torch.equal(v, before_v)
        for side, source in ((pool.k_buffer, before_k), (pool.v_buffer, before_v)):
            for layer in range(NUM_LAYERS):
                for host_page in range(pool.page_num):
                    start = host_page * PAGE_SIZE
                    held = (
                        side[layer, start : start + PAGE_SIZE]
                        if layout == "layer_first"
                        else side[host_page, layer]
                    )
                    if host_page in host_pages:
                        start = device_pages[host_pages.index(host_page)] * PAGE_SIZE
                        assert torch.equal(held, source[layer, start : start + PAGE_SIZE]), (layout, layer)
                    else:
                        assert (held == -1).all(), (layout, layer, host_page)
        k.zero_(), v.zero_()
        loaded = rows_of(load_pages)
        for layer in range(NUM_LAYERS):
            pool.load_to_device_per_layer(None, rows_of(host_pages), loaded, layer, "direct")
            for side, source in ((k, before_k), (v, before_v)):
                assert torch.equal(side[layer][loaded], source[layer][rows_of(device_pages)]), (layout, layer)
                others = torch.ones(side.shape[1], dtype=torch.bool)
                others[loaded] = False
                assert (side[layer][others] == 0).all() and (side[layer + 1 :] == 0).all()
        # one destination: all sources are its layers (K-only and MLA pools)
    from sglang.srt.mem_cache.pool_host._kvcacheio import transfer_kv_all_layer_direct_lf_pf

    host = torch.full((8, NUM_LAYERS, PAGE_SIZE, NUM_HEADS, HEAD_DIM), -1.0)
    transfer_kv_all_layer_direct_lf_pf(list(before_k), [host], rows_of([2]), rows_of([7]), PAGE_SIZE)
    assert torch.equal(host[7], before_k[:, 2 * PAGE_SIZE : 3 * PAGE_SIZE]) and (host[:7] == -1).all()
    try:  # not whole pages
        transfer_kv_all_layer_direct_lf_pf(
            list(before_k), [host], torch.arange(3), torch.arange(3), PAGE_SIZE
        )
    except RuntimeError:
        pass
    else:
        raise AssertionError("a part of a page was accepted")


def check_node_split_hook() -> None:
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.radix_cache import RadixKey
    from sglang.srt.mem_cache.unified_cache import tree_core_registry
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
    from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeCore
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    splits = []

    class AnnotatedCore(UnifiedTreeCore):
        def _on_node_split(self, new_parent, child):
            assert child.parent is new_parent and new_parent.parent.children
            assert len(new_parent.component_data[ComponentType.FULL].value) == len(new_parent.key)
            new_parent.note = child.note
            splits.append((list(new_parent.key.token_ids), list(child.key.token_ids)))

    for core, expected in ((AnnotatedCore, [([1, 2], [3, 4])]), (UnifiedTreeCore, [])):
        splits.clear()
        name = core.__name__
        tree_core_registry.register_tree_core_backend(name, core)
        cache = UnifiedRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=None,
                token_to_kv_pool_allocator=None,
                page_size=1,
                tree_components=(ComponentType.FULL,),
                tree_core_backend=name,
            )
        )

        def key(*tokens: int) -> RadixKey:
            return RadixKey(array("q", tokens))

        cache.insert(InsertParams(key=key(1, 2, 3, 4), value=torch.arange(4)))
        (leaf,) = cache.tree_core.root_node.children.values()
        leaf.note = "kept"
        cache.match_prefix(MatchPrefixParams(key=key(1, 2, 9)))
        (head,) = cache.tree_core.root_node.children.values()
        assert len(head.key) == 2 and leaf.parent is head
        assert splits == expected
        assert getattr(head, "note", None) == ("kept" if expected else None)


CHECKS = {name.removeprefix("check_"): f for name, f in list(globals().items()) if name.startswith("check_")}

if __name__ == "__main__":
    for name in sys.argv[2:] or CHECKS:
        if name.startswith("cpu_") and torch.cuda.is_available():
            print(f"{name} skipped: this machine has a GPU, whose own code path is taken")
            continue
        try:
            CHECKS[name]()
        except Exception as error:
            print(f"{name} failed: {type(error).__name__}: {error}")
        else:
            print(f"{name} ok")
