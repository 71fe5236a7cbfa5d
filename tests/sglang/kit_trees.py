"""Trees over real pools, without a model, built by the test kit that SGLang ships.

`kit_runs_on` decides which eviction policy and tree core the kit's caches get, `build` makes one of them,
and `attach_host_tier` gives it a HiCache host tier; both also work without a GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from unittest import mock

import torch
from sglang.srt.mem_cache.allocator.base import BaseTokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.unified_cache.tree_core_registry import _TREE_CORE_REGISTRY
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.plugins import load_plugins
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
from sglang.test.kits.unified_radix_cache import fixtures, kv_events, mixins, storage
from sglang.test.kits.unified_radix_cache.config import CacheConfig
from sglang.test.kits.unified_radix_cache.unified_tree_core_inspector import UnifiedTreeCoreInspector

from radiximp.serving.tree.backend import TREE_CORE_NAME
from radiximp.serving.tree.core import ImportanceTreeCore

load_plugins()

COPIES_WITHOUT_GPU = {"hicache_io_backend": "direct", "hicache_mem_layout": "page_first_direct"}


@dataclass(frozen=True)
class Variant:
    """An eviction policy on a tree core."""

    name: str
    eviction_policy: str
    eviction_policy_config: Mapping | None = None
    tree_core_backend: str = "python"


STOCK_LRU = Variant("stock lru", "lru")
STOCK_FIFO = Variant("stock fifo", "fifo")
IMPORTANCE = Variant("importance", "importance", None, TREE_CORE_NAME)
# The kit's prompts are short: only with this setting are their leaves cut.
SMALL_CUTS = Variant("importance, small cuts", "importance", {"trim_tokens": 1}, TREE_CORE_NAME)
LRU_LIMIT = Variant(
    "importance, LRU limit", "importance", {"importance_weight": 0, "half_life_s": 0}, TREE_CORE_NAME
)


class ImportanceInspector(ImportanceTreeCore, UnifiedTreeCoreInspector):
    """Our tree core with the kit's white-box questions on top."""


@dataclass
class Tree:
    """One cache and the pools it frees into."""

    cfg: CacheConfig
    cache: UnifiedRadixCache
    allocator: BaseTokenToKVPoolAllocator
    req_to_token_pool: ReqToTokenPool


def build(cfg: CacheConfig, variant: Variant, **kwargs) -> Tree:
    """A fresh cache of `cfg`'s components under `variant`; `kwargs` go to the kit's `build_fixture`."""
    with kit_runs_on(variant):
        return Tree(cfg, *fixtures.build_fixture(cfg, **kwargs))


@contextlib.contextmanager
def kit_runs_on(variant: Variant) -> Iterator[None]:
    """While active, every cache that the kit builds is of `variant`, whatever its `CacheConfig` says.

    Without a GPU the kit's host tiers copy through torch instead of through CUDA kernels.
    """

    def init_params(**kwargs) -> CacheInitParams:
        kwargs["eviction_policy"] = variant.eviction_policy
        return CacheInitParams(**kwargs, eviction_policy_config=variant.eviction_policy_config)

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(fixtures, "CacheInitParams", init_params))
        stack.enter_context(mock.patch.object(fixtures, "TREE_CORE_TEST_BACKEND", variant.tree_core_backend))
        stack.enter_context(mock.patch.dict(_TREE_CORE_REGISTRY, {TREE_CORE_NAME: ImportanceInspector}))
        if not torch.cuda.is_available():
            _use_torch_copies_for_mamba()
            for module in (kv_events, mixins, storage):
                stack.enter_context(mock.patch.object(module, "ServerArgs", _server_args_without_gpu))
        yield


def _server_args_without_gpu(**kwargs) -> ServerArgs:
    return ServerArgs(**{**kwargs, **COPIES_WITHOUT_GPU})


def attach_host_tier(tree: Tree, write_policy: str, ratio: float = 1.0) -> None:
    """Give `tree` a host tier of `ratio` times its device pools; the caller detaches it."""
    if not torch.cuda.is_available():
        _use_torch_copies_for_mamba()
    server_args = ServerArgs(
        model_path="dummy",
        page_size=tree.cfg.page_size,
        hicache_ratio=ratio,
        **COPIES_WITHOUT_GPU,
        hicache_write_policy=write_policy,
    )
    server_args._mamba_cache_chunk_size = max(fixtures.FLA_CHUNK_SIZE, tree.cfg.page_size)
    set_global_server_args_for_scheduler(server_args)
    tree.cache.init_hicache(server_args, tree.cache.cache_init_params)
    fixtures.drop_hicache_atexit_pin(tree.cache)
    tree.cache.load_back_threshold = 0


def detach_host_tier(tree: Tree) -> None:
    """Give the host buffers of `attach_host_tier` back."""
    tree.cache.release_host_resources()


def _use_torch_copies_for_mamba() -> None:
    """The CPU platform serves dense models only, so it leaves the Mamba host pool's copies alone."""
    from sglang.srt.mem_cache.pool_host import mamba

    from radiximp.serving.cpu import host_pool

    for name in (
        "transfer_kv_direct",
        "transfer_kv_per_layer_direct_pf_lf",
        "transfer_kv_all_layer_direct_lf_pf",
    ):
        setattr(mamba, name, getattr(host_pool, name))
