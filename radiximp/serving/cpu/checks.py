"""Refuses server arguments that the CPU platform cannot serve: one sentence, before the model loads.

`check_flags` looks at what the user gave and runs before SGLang reads the model; `check_model` looks at the
model's configuration. Both end the process with `Refusal`, a SystemExit, because SGLang logs any other
exception of a plugin as a page of traceback.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from radiximp.serving.cpu.platform import ATTENTION_BACKEND

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

# flag -> the values that work here; None stands for "not given".
ALLOWED_VALUES: dict[str, tuple] = {
    "device": (None, "cpu"),
    "attention_backend": (None, ATTENTION_BACKEND, "torch_native"),
    "prefill_attention_backend": (None, ATTENTION_BACKEND, "torch_native"),
    "decode_attention_backend": (None, ATTENTION_BACKEND, "torch_native"),
    "sampling_backend": (None, "pytorch"),
    "quantization": (None, "unquant"),
    "kv_cache_dtype": ("auto", "bfloat16", "bf16"),
    "speculative_algorithm": (None,),
    "cuda_graph_backend_decode": (None, "disabled"),
    "cuda_graph_backend_prefill": (None, "disabled"),
    "cuda_graph_config": (None,),
    "hicache_storage_backend": (None, "file", "dynamic"),
    "disaggregation_mode": ("null",),
    "lora_paths": (None,),
    "moe_a2a_backend": ("none",),
    "nnodes": (1,),
    "pp_size": (1,),
    "attn_cp_size": (1,),
    "dcp_size": (1,),
    "cpu_offload_gb": (0,),
    "dllm_algorithm": (None,),
}
# Flags whose default does not work here, so that only an explicit value can be refused.
ALLOWED_WHEN_GIVEN: dict[str, tuple] = {
    "hicache_io_backend": ("direct",),
    "hicache_mem_layout": ("layer_first", "page_first_direct"),
}
# Switches that reach kernels, graphs or memory tricks of an accelerator.
REFUSED_SWITCHES = (
    "enable_torch_compile",
    "enable_deterministic_inference",
    "enable_lora",
    "enable_memory_saver",
    "enable_symm_mem",
    "enable_torch_symm_mem",
    "enable_mscclpp",
    "enable_two_batch_overlap",
    "enable_pdmux",
    "enable_hisparse",
    "enable_unified_memory",
    "enable_unified_cache_external_linker",
    "enable_lmcache",
    "enable_flexkv",
    "enable_page_major_kv_layout",
    "enable_return_routed_experts",
)


class Refusal(SystemExit):
    """Ends the process with exit code 1 after printing one line."""

    def __init__(self, sentence: str) -> None:
        super().__init__(f"radiximp: {sentence}")


def check_flags(server_args: ServerArgs) -> None:
    """Raise `Refusal` for the first flag that cannot work; reads the raw input, changes nothing."""
    for name, allowed in ALLOWED_VALUES.items():
        _check_value(name, getattr(server_args, name), allowed)
    for name, allowed in ALLOWED_WHEN_GIVEN.items():
        if is_given(server_args, name):
            _check_value(name, getattr(server_args, name), allowed)
    for name in REFUSED_SWITCHES:
        if getattr(server_args, name):
            raise Refusal(f"{_flag(name)} needs an accelerator; leave it out on a machine without a GPU")


def check_model(server_args: ServerArgs) -> None:
    """Raise `Refusal` if the model needs layers that have no CPU version here."""
    from sglang.srt.arg_groups.overrides import model_config_of, use_mla_backend
    from sglang.srt.configs.hybrid_arch import mambaish_config

    model = model_config_of(server_args)
    text = model.hf_text_config
    for is_present, what in (
        (use_mla_backend(server_args), "multi-head latent attention (MLA)"),
        (model.is_encoder_decoder, "an encoder"),
        (mambaish_config(model) is not None, "Mamba or linear-attention layers"),
        (model.has_attention_sinks, "learned attention sinks"),
        (getattr(text, "attn_logit_softcapping", None), "capped attention logits"),
        (getattr(text, "num_experts", None) or getattr(text, "num_local_experts", None), "experts (MoE)"),
        (getattr(model.hf_config, "quantization_config", None), "quantised weights"),
    ):
        if is_present:
            raise Refusal(
                f"--model-path {server_args.model_path}: a model with {what} cannot be served without a GPU; "
                "supported are dense decoder models in bfloat16, float16 or float32"
            )


def is_given(server_args: ServerArgs, name: str) -> bool:
    """True if the launching command names the flag, whatever its value."""
    command = server_args.launch_command or ""
    return re.search(rf"(^|\s){_flag(name)}(\s|=|$)|\b{name}=", command) is not None


def _check_value(name: str, value: object, allowed: tuple) -> None:
    if value in allowed:
        return
    supported = " or ".join(str(choice) for choice in allowed if choice is not None)
    remedy = f"supported here: {supported}" if supported else "leave it out"
    raise Refusal(f"{_flag(name)} {value} cannot be served without a GPU; {remedy}")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
