"""The few SGLang functions that assume an accelerator and have no seam of their own."""

from __future__ import annotations

import torch


def register() -> None:
    from sglang.srt.arg_groups.overrides import declare_resolution
    from sglang.srt.arg_groups.resolution_hooks import register_resolution_hook
    from sglang.srt.mem_cache import allocation
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from radiximp.serving.cpu import checks, defaults

    @register_resolution_hook("handle_hardware_runtime_validation")
    def _check_flags(server_args, previous) -> None:
        checks.check_flags(server_args)
        previous(server_args)

    @register_resolution_hook("handle_platform_defaults")
    def _check_model_and_fill_defaults(server_args, previous) -> None:
        checks.check_model(server_args)
        defaults.set_thread_environment(server_args)
        declare_resolution(server_args, "radiximp_cpu", **defaults.choose(server_args))
        previous(server_args)

    # It launches a Triton kernel for every attention backend whose name it does not know.
    HookRegistry.register(
        "sglang.srt.mem_cache.allocation.get_last_loc", allocation.get_last_loc_torch, HookType.REPLACE
    )
    HookRegistry.register(
        "sglang.srt.distributed.parallel_state.GroupCoordinator.all_reduce", _all_reduce, HookType.AROUND
    )


def _all_reduce(original, self, input_: torch.Tensor) -> torch.Tensor:
    """Sum over the ranks in rank order, in float32, in place.

    Gloo's own all-reduce orders the sum by an element's place in the message, so that a token's result
    would depend on the batch around it.
    """
    if self.world_size == 1 or not input_.is_cpu or not input_.is_floating_point():
        return original(self, input_)
    parts = [torch.empty_like(input_) for _ in range(self.world_size)]
    torch.distributed.all_gather(parts, input_.contiguous(), group=self.device_group)
    total = parts[0].float()
    for part in parts[1:]:
        total += part
    return input_.copy_(total)
