"""What is known of models, GPUs and storage tiers: each number with its unit and where it comes from.

"Note" is the research note that `formulas.py` names. Decimal GB/s, binary GiB, as there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from radiximp.cost import formulas


class CostError(ValueError):
    """A name, a number or a file the model of costs cannot use; the message is one line for the user."""


@dataclass(frozen=True)
class ModelSpec:
    """A model as far as the formulas see it. Invariant: at least one layer has full attention.

    num_active_params: weights that one token is multiplied with. linear_state_bytes: of all linear-attention layers, per
    sequence. max_context_tokens: what the model was made for; None where it is not known.
    """

    name: str
    num_active_params: float
    num_attention_layers: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    linear_state_bytes: int = 0
    max_context_tokens: int | None = None

    @property
    def flops_per_token(self) -> float:
        return formulas.linear_flops_per_token(self.num_active_params)

    @property
    def flops_per_pair(self) -> float:
        return formulas.attention_flops_per_pair(self.num_q_heads, self.head_dim, self.num_attention_layers)

    def kv_bytes_per_token(self, bytes_per_element: int) -> int:
        return formulas.kv_bytes_per_token(
            self.num_kv_heads, self.head_dim, self.num_attention_layers, bytes_per_element
        )


@dataclass(frozen=True)
class GpuSpec:
    """One GPU: peak dense BF16, memory and its bandwidth."""

    name: str
    peak_flops_per_s: float
    hbm_bytes: float
    hbm_gbps: float


@dataclass(frozen=True)
class Tier:
    """Where KV is fetched from. bandwidth_gbps: peak, in 10^9 bytes/s."""

    name: str
    bandwidth_gbps: float


# Section 5 and the config.json of each model; N is the round number of the model's name, as in the note. The weights of
# Qwen3.5-27B's linear layers are in N; their state: 48 layers, 16 k heads, 48 v heads, 128 x 128, kernel 4, FP32.
_QWEN35_STATE_BYTES = 48 * formulas.linear_state_bytes_per_layer(16, 48, 128, 128, 4, 4)
# name, N, L with full attention, n_q, n_kv, d, linear state (bytes), max context (tokens)
MODELS = [
    ModelSpec("Qwen3-14B", 14.0e9, 40, 40, 8, 128, 0, 40960),
    ModelSpec("Qwen3.5-27B", 27.0e9, 16, 24, 4, 256, _QWEN35_STATE_BYTES, 262144),
]

# Section 9: the vendor's data sheets, without sparsity. B100: HGX B100, 14 PFLOPS over 8 GPUs (a single B100's sheet says
# 1800). B200: HGX B200, 18 PFLOPS over 8. The note reads the sheets' "80 GB", "141 GB" and "192 GB" as GiB.
# name, peak dense BF16 (FLOP/s), HBM (bytes), HBM (GB/s)
GPUS = [
    GpuSpec("A100", 312e12, 80 * formulas.GIB_BYTES, 2039),
    GpuSpec("H100", 989e12, 80 * formulas.GIB_BYTES, 3350),
    GpuSpec("H200", 989e12, 141 * formulas.GIB_BYTES, 4800),
    GpuSpec("B100", 1750e12, 192 * formulas.GIB_BYTES, 8000),
    GpuSpec("B200", 2250e12, 192 * formulas.GIB_BYTES, 8000),
]

# Section 5, GB/s. HBM is that of the GPUs themselves: 4078 there, of two A100.
HBM = "hbm"
_FIXED_TIERS = [Tier("dram", 120.0), Tier("rdma", 50.0), Tier("ssd", 10.0), Tier("remote", 0.35)]


def tiers_of(gpu: GpuSpec, num_gpus: int) -> list[Tier]:
    """Every known tier beside these GPUs, fastest first."""
    return [Tier(HBM, gpu.hbm_gbps * num_gpus), *_FIXED_TIERS]


def find(specs: Iterable, name: str):
    """The spec of that name, in either case; None where there is none."""
    return next((spec for spec in specs if spec.name.lower() == name.lower()), None)


def names(specs: Iterable) -> str:
    """The names of a list, for messages."""
    return ", ".join(spec.name for spec in specs)
