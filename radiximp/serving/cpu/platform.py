"""The SGLang platform for machines without an accelerator.

`activate` is the `sglang.srt.platforms` entry point; SGLang calls it once per process and then builds
`RadiximpCpuPlatform`. Defaults and refusals of server arguments are in `checks.py`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

ATTENTION_BACKEND = "radiximp_cpu"


def activate() -> str | None:
    """Qualified name of the platform class; None where SGLang has a platform of its own."""
    if os.environ.get("SGLANG_USE_CPU_ENGINE", "0") == "1" or find_accelerator() is not None:
        return None
    return f"{__name__}.RadiximpCpuPlatform"


def find_accelerator() -> str | None:
    """Device type of an accelerator that torch can use ("cuda" also stands for ROCm), None if there is none."""
    for name in ("cuda", "xpu", "npu", "musa", "mps"):
        module = getattr(torch, name, None)
        if module is not None and module.is_available():
            return name
    return None


def is_active() -> bool:
    """True if this process serves through the CPU platform of this package."""
    from sglang.srt.platforms import current_platform

    return isinstance(current_platform, RadiximpCpuPlatform)


class RadiximpCpuPlatform(CpuDeviceMixin, SRTPlatform):
    """Plain torch on the host's cores: no graphs, no Triton, no device kernels (the base's capabilities)."""

    _enum = PlatformEnum.OOT
    capabilities = PlatformCapabilities()

    def get_device(self, device_id: int | None = None) -> str:  # type: ignore[override]
        # The launcher splits it at ":", so a torch.device will not do.
        return "cpu"

    def get_default_attention_backend(self) -> str:
        return ATTENTION_BACKEND

    def apply_server_args_defaults(self, server_args: ServerArgs) -> None:
        from radiximp.serving.cpu import checks

        checks.check(server_args)
        checks.fill_defaults(server_args)
