"""The SGLang platform for machines without an accelerator.

`activate` is the `sglang.srt.platforms` entry point; SGLang calls it once per process and then builds
`RadiximpCpuPlatform`. Refusals and defaults of server arguments are in
`checks.py` and `defaults.py`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform

from radiximp.serving import accelerator

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

ATTENTION_BACKEND = "radiximp_cpu"


def activate() -> str | None:
    """Qualified name of the platform class; None where SGLang has a platform of its own."""
    if os.environ.get("SGLANG_USE_CPU_ENGINE", "0") == "1" or accelerator.find() is not None:
        return None
    # Threads that spin while they wait lose their time slice to other work on a shared machine, and every
    # operator then takes a scheduling quantum. Read when a process starts, so this reaches the workers.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return f"{__name__}.RadiximpCpuPlatform"


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

    def get_compile_backend(self, mode: str | None = None) -> str:
        return "eager"  # inductor needs a C++ compiler on the user's machine

    def apply_server_args_defaults(self, server_args: ServerArgs) -> None:
        """Defaults come from `runtime.register`'s hook; without it this server would compute nonsense."""
        from radiximp.serving import cpu

        if not cpu.is_installed():
            raise SystemExit(
                "radiximp: the CPU platform is active but the radiximp plugin did not load; "
                "see the traceback above, or add radiximp to SGLANG_PLUGINS"
            )

    def post_load_model(self, model: torch.nn.Module) -> None:
        from radiximp.serving.cpu import attention, linear

        linear.prepare(model)
        attention.prepare(model)
