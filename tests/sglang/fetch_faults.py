"""Faults of the tiers below the device, put into SGLang's own copies and reads for as long as a block lasts."""

from __future__ import annotations

import threading

from sglang.srt.mem_cache.hicache_storage import HiCacheFile
from sglang.srt.mem_cache.pool_host.base import HostKVCache

LIMIT_S = 20.0


class FetchFaults:
    """`with FetchFaults() as faults`: nothing is wrong until one says so; all is undone at the end.

    breaks_copies: the second layer of a load-back cannot be copied. answers: cleared, reads of the storage wait.
    """

    def __init__(self) -> None:
        self.breaks_copies = False
        self.num_broken_copies = 0
        self.answers = threading.Event()
        self.answers.set()

    def __enter__(self) -> FetchFaults:
        self._copy, self._read = HostKVCache.load_to_device_per_layer_physical, HiCacheFile.batch_get
        faults = self

        def copy(pool, device_pool, host_indices, device_indices, layer_id, *args, **kwargs):
            if faults.breaks_copies and layer_id == 1:
                faults.num_broken_copies += 1
                raise OSError("no such memory")
            return faults._copy(pool, device_pool, host_indices, device_indices, layer_id, *args, **kwargs)

        def read(storage, *args, **kwargs):
            if not faults.answers.wait(LIMIT_S):
                raise TimeoutError(f"the storage was silent for {LIMIT_S:g} s")
            return faults._read(storage, *args, **kwargs)

        HostKVCache.load_to_device_per_layer_physical = copy
        HiCacheFile.batch_get = read
        return self

    def __exit__(self, *error: object) -> None:
        self.answers.set()
        HostKVCache.load_to_device_per_layer_physical = self._copy
        HiCacheFile.batch_get = self._read
