"""A cache over real KV pools on both tiers, whose every slot holds a number that only its prefix gives.

So a test can say not only how much was found, but that what was found is the right KV.
"""

from __future__ import annotations

import atexit
import zlib
from array import array
from collections.abc import Sequence

import torch
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

from tests.sglang.builders import key_of

_LAYERS = 2


def prefix_marks(tokens: Sequence[int], salt: str | None = None) -> torch.Tensor:
    """[num_tokens] float32: a number per position that depends on the namespace and all tokens up to it."""
    mark, marks = zlib.crc32((salt or "").encode()), []
    for token in tokens:
        mark = zlib.crc32(array("q", [token]).tobytes(), mark)
        marks.append(float(mark % 100_003))
    return torch.tensor(marks)


class KvRig:
    """A unified radix cache with a device pool and, if asked, a host pool; drives it as a scheduler does."""

    def __init__(
        self,
        device_tokens: int,
        page_size: int = 1,
        policy: str = "importance",
        config: dict | None = None,
        write_policy: str | None = None,
        host_ratio: float = 1.5,
        mem_layout: str = "layer_first",
        storage_path: str | None = None,
        **params,
    ) -> None:
        self.page_size = page_size
        storage = (
            {}
            if storage_path is None
            else {"hicache_storage_backend": "file", "file_storage_path": storage_path}
        )
        server_args = ServerArgs(
            model_path="dummy",
            **storage,
            page_size=page_size,
            hicache_io_backend="direct",
            hicache_mem_layout=mem_layout,
            hicache_ratio=host_ratio,
            hicache_write_policy=write_policy or "write_through",
        )
        set_global_server_args_for_scheduler(server_args)
        self.pool = MHATokenToKVPool(
            size=device_tokens,
            page_size=page_size,
            dtype=torch.float32,
            head_num=1,
            head_dim=2,
            layer_num=_LAYERS,
            device="cpu",
            enable_memory_saver=False,
        )
        allocator_class = TokenToKVPoolAllocator if page_size == 1 else PagedTokenToKVPoolAllocator
        paged = {} if page_size == 1 else {"page_size": page_size}
        self.allocator = allocator_class(
            size=device_tokens, dtype=torch.float32, device="cpu", kvcache=self.pool, need_sort=False, **paged
        )
        init = CacheInitParams(
            disable=False,
            req_to_token_pool=ReqToTokenPool(
                size=16, max_context_len=4096, device="cpu", enable_memory_saver=False
            ),
            token_to_kv_pool_allocator=self.allocator,
            page_size=page_size,
            eviction_policy=policy,
            eviction_policy_config=config,
            tree_components=(ComponentType.FULL,),
            **params,
        )
        self.cache = UnifiedRadixCache(init)
        self.core = self.cache.tree_core
        self.device_tokens = device_tokens
        self.has_host = write_policy is not None
        if self.has_host:
            self.cache.init_hicache(server_args, init)
            atexit.unregister(self.cache.shutdown)
            self.cache.load_back_threshold = 0

    def close(self) -> None:
        """Give the host pool back."""
        if self.has_host:
            self.cache.release_host_resources()

    def drain(self) -> None:
        """Complete the copies in flight, as the scheduler does between batches."""
        if self.has_host:
            controller = self.cache.cache_controller
            for queue in (controller.ack_write_queue, controller.ack_load_queue):
                for ack in list(queue):
                    ack.finish_event.synchronize()
            self.cache.check_hicache_events()

    def align(self, num_tokens: int) -> int:
        return num_tokens // self.page_size * self.page_size

    def start(self, tokens: Sequence[int], salt: str | None = None, extra_key: str | None = None):
        """Admit a request: match, load back, lock, allocate, prefill, insert. Returns (lock, hit tokens).

        None if the pool cannot hold it even after evicting all that may go.
        """
        key = key_of(tokens, extra_key, salt)
        match = self.cache.match_prefix(MatchPrefixParams(key=key))
        if match.host_hit_length and self.cache.load_back(match.best_match_node):
            self.cache.cache_controller.start_loading()
            self.drain()
            match = self.cache.match_prefix(MatchPrefixParams(key=key))
        node = match.last_device_node
        lock = self.cache.inc_lock_ref(node).to_dec_params()
        num_hit, num_total = match.device_prefix_len, self.align(len(tokens))
        num_new = num_total - num_hit
        short = num_new - self.allocator.available_size()
        if short > 0:
            self.cache.evict_for_alloc(EvictParams(num_tokens=short))
        fresh = self.allocator.alloc(num_new) if num_new else None
        if num_new and fresh is None:
            self.cache.dec_lock_ref(node, lock)
            return None
        slots = self.cache.path_device_indices(node)
        marks = prefix_marks(tokens, salt)
        assert torch.equal(self.read(slots), marks[: len(slots)]), "the cached prefix is not this prompt's KV"
        if fresh is not None:
            self.write(fresh, marks[num_hit:num_total])
            slots = torch.cat([slots, fresh])
        result = self.cache.insert(InsertParams(key=key, value=slots, prev_prefix_len=num_hit))
        new_lock = self.cache.inc_lock_ref(result.last_device_node).to_dec_params()
        self.cache.dec_lock_ref(node, lock)
        return (result.last_device_node, new_lock), num_hit

    def finish(self, handle) -> None:
        """The request is done: its path may go."""
        self.cache.dec_lock_ref(*handle)

    def write(self, slots: torch.Tensor, marks: torch.Tensor) -> None:
        for layer in range(_LAYERS):
            self.pool.k_buffer[layer][slots] = (marks + layer).view(-1, 1, 1).expand(-1, 1, 2)
            self.pool.v_buffer[layer][slots] = -(marks + layer).view(-1, 1, 1).expand(-1, 1, 2)

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """The marks in `slots`, the same in all layers, K and V."""
        marks = self.pool.k_buffer[0][slots][:, 0, 0].clone()
        for layer in range(_LAYERS):
            assert torch.equal(self.pool.k_buffer[layer][slots][:, 0, 1], marks + layer)
            assert torch.equal(self.pool.v_buffer[layer][slots][:, 0, 0], -(marks + layer))
        return marks

    def check(self) -> None:
        """Every invariant: the tree's own, both pools' accounting, and the content of all cached KV."""
        self.cache.sanity_check()
        held = self.core.evictable_size() + self.core.protected_size()
        assert held + self.allocator.available_size() == self.device_tokens
        stack = [(self.core.root_node, [])]
        num_host = 0
        seen: set[int] = set()
        while stack:
            node, prefix = stack.pop()
            if node is not self.core.root_node:
                prefix = prefix + list(node.key.token_ids)
                data = node.component_data[ComponentType.FULL]
                if data.value is not None:
                    assert not seen & set(data.value.tolist()), "a slot is in two nodes"
                    seen |= set(data.value.tolist())
                    marks = prefix_marks(prefix, node.key.cache_salt)[-len(node.key) :]
                    assert torch.equal(self.read(data.value), marks), (
                        f"node {node.id} holds another prefix's KV"
                    )
                if data.host_value is not None:
                    num_host += len(data.host_value)
            stack.extend((child, prefix) for child in node.children.values())
        if self.has_host:
            host = self.cache.cache_controller.mem_pool_host
            assert num_host + host.available_size() == host.size
