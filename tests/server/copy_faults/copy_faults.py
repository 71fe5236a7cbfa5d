"""On PYTHONPATH, a plugin of SGLang's that slows or breaks load-backs as a control file says, while the server runs.

The file is named by COPY_FAULTS and holds JSON: {"delay_s", "s_per_token", "breaks_every"}. A load-back takes that much
longer; with breaks_every n every n-th one raises at its second layer.
"""

import json
import os
import time

_loads = 0


def register() -> None:
    """SGLang calls it in every process; without COPY_FAULTS it does nothing."""
    path = os.environ.get("COPY_FAULTS")
    if not path:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def load(original, pool, device_pool, host_indices, device_indices, layer_id, *args, **kwargs):
        global _loads
        with open(path) as file:
            wanted = json.load(file)
        if layer_id == 0:
            _loads += 1
            time.sleep(wanted.get("delay_s", 0.0) + wanted.get("s_per_token", 0.0) * len(host_indices))
        if layer_id == 1 and wanted.get("breaks_every") and _loads % wanted["breaks_every"] == 0:
            raise OSError("a copy that was asked to fail")
        return original(pool, device_pool, host_indices, device_indices, layer_id, *args, **kwargs)

    target = "sglang.srt.mem_cache.pool_host.base.HostKVCache.load_to_device_per_layer_physical"
    HookRegistry.register(target, load, HookType.AROUND)
