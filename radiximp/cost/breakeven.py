"""From which context on a fetch is faster than a prefill: one row a tier, and what the figures draw."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from radiximp.cost import formulas
from radiximp.cost.predict import CachedState, PrefillModel, Transfer
from radiximp.cost.specs import GpuSpec, ModelSpec, Tier


@dataclass(frozen=True)
class Setup:
    """A model on GPUs, and what is assumed of both. All methods O(1).

    has_linear_state: a fetch of any length also moves a hybrid model's constant state.
    """

    model: ModelSpec
    gpu: GpuSpec
    num_gpus: int
    mfu: float
    bw_util: float
    kv_bytes_per_element: int = 2
    latency_s: float = 0.0
    is_causal: bool = False
    has_linear_state: bool = False

    @property
    def prefill(self) -> PrefillModel:
        return PrefillModel.from_specs(self.model, self.gpu, self.num_gpus, self.mfu, self.is_causal)

    @property
    def state(self) -> CachedState:
        return CachedState(
            bytes_per_token=self.model.kv_bytes_per_token(self.kv_bytes_per_element),
            constant_bytes=self.model.linear_state_bytes if self.has_linear_state else 0,
            num_layers=self.model.num_attention_layers,
        )

    def transfer(self, tier: Tier) -> Transfer:
        return Transfer(tier.bandwidth_gbps * formulas.GB_BYTES * self.bw_util, self.latency_s)

    def crossing_tokens(self, tier: Tier) -> float | None:
        """The context beyond which a fetch from the tier is faster; None: from the first token on."""
        prefill, state, transfer = self.prefill, self.state, self.transfer(tier)
        return formulas.crossing_tokens(
            prefill.s_per_token,
            prefill.s_per_pair * formulas.attention_pairs(1, 0, self.is_causal),
            state.bytes_per_token / transfer.bandwidth_bytes_per_s,
            transfer.wait_s + state.constant_bytes / transfer.bandwidth_bytes_per_s,
        )

    def min_bandwidth_gbps(self, context_tokens: float) -> float | None:
        """The slowest tier that is as fast as the prefill of this context; None: none is, for the latency alone."""
        found = formulas.min_bandwidth_bytes_per_s(
            self.state.num_bytes(context_tokens),
            self.prefill.seconds(context_tokens),
            self.bw_util,
            self.latency_s,
        )
        return None if found is None else found / formulas.GB_BYTES

    @property
    def hbm_capacity_tokens(self) -> int:
        """Tokens whose KV fills the memory of all GPUs, weights not counted."""
        return self.capacity_tokens(self.gpu.hbm_bytes * self.num_gpus)

    def capacity_tokens(self, memory_bytes: float) -> int:
        return formulas.capacity_tokens(memory_bytes, self.state.bytes_per_token, self.state.constant_bytes)


@dataclass(frozen=True)
class Row:
    """One tier of a table. crossing_*: None where a fetch is faster from the first token on."""

    model: str
    gpu: str
    num_gpus: int
    tier: str
    bandwidth_gbps: float
    mfu: float
    bw_util: float
    crossing_tokens: float | None
    crossing_k: float | None
    min_bandwidth_gbps: float | None
    hbm_capacity_tokens: int

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def row_of(setup: Setup, tier: Tier, context_tokens: int) -> Row:
    """What is known of a tier; min_bandwidth_gbps is for the context."""
    crossing = setup.crossing_tokens(tier)
    return Row(
        model=setup.model.name,
        gpu=setup.gpu.name,
        num_gpus=setup.num_gpus,
        tier=tier.name,
        bandwidth_gbps=tier.bandwidth_gbps,
        mfu=setup.mfu,
        bw_util=setup.bw_util,
        crossing_tokens=crossing,
        crossing_k=None if crossing is None else crossing / formulas.K_TOKENS,
        min_bandwidth_gbps=setup.min_bandwidth_gbps(context_tokens),
        hbm_capacity_tokens=setup.hbm_capacity_tokens,
    )
