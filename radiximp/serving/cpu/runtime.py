"""SGLang functions that pick a Triton kernel for any attention backend whose name they do not know."""

from __future__ import annotations

from sglang.srt.plugins.hook_registry import HookRegistry, HookType


def register() -> None:
    from sglang.srt.mem_cache import allocation

    HookRegistry.register(
        "sglang.srt.mem_cache.allocation.get_last_loc", allocation.get_last_loc_torch, HookType.REPLACE
    )
