"""Server-argument defaults for the CPU platform, so that a user needs no extra flags."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import psutil

from radiximp.serving.cpu.platform import ATTENTION_BACKEND

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

# The machine is shared with its users' other work: at most this part of the free memory is KV cache.
DEVICE_MEMORY_FRACTION = 1 / 8
# ... and no more than this many full contexts, because the host tier doubles as it is.
MAX_CONTEXTS = 4
MAX_RUNNING_REQUESTS = 32
# A multiple of the linear layers' block and of the attention tile, about a second of work.
CHUNKED_PREFILL_TOKENS = 2048


def choose(server_args: ServerArgs) -> dict[str, object]:
    """Field values to declare; what the user gave is kept."""
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.model_executor.cuda_graph_config import Backend, CudaGraphConfig, PhaseConfig

    given = server_args
    current = resolving_view(server_args)
    fields: dict[str, object] = {
        "attention_backend": given.attention_backend or ATTENTION_BACKEND,
        "sampling_backend": "pytorch",
        "cuda_graph_config": CudaGraphConfig(
            decode=PhaseConfig(backend=Backend.DISABLED), prefill=PhaseConfig(backend=Backend.DISABLED)
        ),
        "disable_custom_all_reduce": True,
        # One pool for full and sliding layers: attention reads every layer through the same slots.
        "disable_hybrid_swa_memory": True,
        "hicache_io_backend": "direct",
        "hicache_mem_layout": "layer_first"
        if current.hicache_mem_layout == "layer_first"
        else "page_first_direct",
    }
    if serves_float32(given):
        fields["dtype"] = "float32"
    if given.max_running_requests is None:
        fields["max_running_requests"] = MAX_RUNNING_REQUESTS
    if given.chunked_prefill_size is None:
        fields["chunked_prefill_size"] = CHUNKED_PREFILL_TOKENS
    if given.max_total_tokens is None and given.mem_fraction_static is None:
        fields["max_total_tokens"] = max_total_tokens(server_args)
    return fields


def serves_float32(server_args: ServerArgs) -> bool:
    """True if the user asked for it, or for nothing and this processor is an order slower in the model's own type."""
    return server_args.dtype in ("float32", "float") or (
        server_args.dtype == "auto" and not multiplies_bfloat16()
    )


def multiplies_bfloat16() -> bool:
    """False where torch would multiply bfloat16 numbers one at a time."""
    import torch

    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def max_total_tokens(server_args: ServerArgs) -> int:
    """Tokens of device KV cache per rank, a multiple of the page size."""
    from sglang.srt.arg_groups.overrides import model_config_of, resolving_view

    current = resolving_view(server_args)
    model = model_config_of(server_args)
    num_kv_heads = model.get_num_kv_heads(current.tp_size)
    bytes_per_token = model.num_hidden_layers * num_kv_heads * (model.head_dim + model.v_head_dim)
    bytes_per_token *= 4 if serves_float32(server_args) else 2
    budget_bytes = psutil.virtual_memory().available * DEVICE_MEMORY_FRACTION / _num_ranks(current)
    page_size = current.page_size or 1
    num_tokens = min(int(budget_bytes / bytes_per_token), MAX_CONTEXTS * model.context_len)
    return max(num_tokens // page_size, 1) * page_size


def set_thread_environment(server_args: ServerArgs) -> None:
    """Environment of the processes to come: how many OpenMP threads each rank has, and how they wait."""
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.utils.numa_utils import get_cpu_ids_by_node

    num_ranks = _num_ranks(resolving_view(server_args))
    cpus = sorted(os.sched_getaffinity(0))
    if num_ranks > 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(cpus) // num_ranks)))
    if num_ranks > len(get_cpu_ids_by_node()):
        # SGLang wants to bind one rank per NUMA node and refuses more ranks; it binds nothing without its
        # own kernels, so that naming the same cores for every rank only lets it start.
        every_cpu = ",".join(map(str, cpus))
        os.environ.setdefault("SGLANG_CPU_OMP_THREADS_BIND", "|".join([every_cpu] * num_ranks))


def _num_ranks(config) -> int:
    return config.tp_size * config.dp_size * config.pp_size
