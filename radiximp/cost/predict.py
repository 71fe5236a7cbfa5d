"""Predictions in seconds, and the decision of how much of a cached prefix to fetch.

`PrefillModel` and `Transfer` hold nothing but coefficients, from specs or from measurements. All calls are pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from radiximp.cost import formulas
from radiximp.cost.formulas import Numbers
from radiximp.cost.specs import GpuSpec, ModelSpec

# Predictions closer than this are a tie. Rounding must not decide between splits that are equally good.
TIE_S = 1e-9


@dataclass(frozen=True)
class PrefillModel:
    """Seconds of a prefill by `formulas.prefill_s`. O(1). Raises ValueError for a coefficient below 0."""

    s_per_token: float
    s_per_pair: float
    is_causal: bool = False
    overhead_s: float = 0.0

    def __post_init__(self) -> None:
        if not min(self.s_per_token, self.s_per_pair, self.overhead_s) >= 0:
            raise ValueError(f"expected seconds of at least 0, got {self}")

    @classmethod
    def from_specs(
        cls, model: ModelSpec, gpu: GpuSpec, num_gpus: int, mfu: float, is_causal: bool = False
    ) -> PrefillModel:
        """The roofline: FLOP over mfu * peak of all GPUs."""
        peak_flops_per_s = gpu.peak_flops_per_s * num_gpus
        return cls(
            s_per_token=formulas.compute_s(model.flops_per_token, mfu, peak_flops_per_s),
            s_per_pair=formulas.compute_s(model.flops_per_pair, mfu, peak_flops_per_s),
            is_causal=is_causal,
        )

    def seconds(self, num_new: Numbers, num_prefix: Numbers = 0) -> Numbers:
        """Seconds until `num_new` tokens are computed after `num_prefix` whose KV is there."""
        return formulas.prefill_s(
            num_new, num_prefix, self.s_per_token, self.s_per_pair, self.is_causal, self.overhead_s
        )


@dataclass(frozen=True)
class Transfer:
    """Seconds of one transfer from a tier. bandwidth_bytes_per_s is what is reached, not the peak. O(1).

    Raises ValueError for a bandwidth that is not above 0, or a wait below it.
    """

    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    queue_s: float = 0.0

    def __post_init__(self) -> None:
        if not (self.bandwidth_bytes_per_s > 0 and self.latency_s >= 0 and self.queue_s >= 0):
            raise ValueError(f"expected a bandwidth above 0 and waits of at least 0, got {self}")

    @property
    def wait_s(self) -> float:
        """Seconds before the first byte."""
        return self.queue_s + self.latency_s

    def seconds(self, num_bytes: Numbers) -> Numbers:
        """Seconds from asking until the last byte is there; 0 for no bytes."""
        return formulas.transfer_s(num_bytes, self.bandwidth_bytes_per_s, self.latency_s, self.queue_s)


@dataclass(frozen=True)
class CachedState:
    """What is fetched of a prefix: bytes for each token and, of a hybrid model, bytes for a prefix of any length.

    num_layers: how many loads a layer-wise fetch is made of.
    """

    bytes_per_token: float
    constant_bytes: float = 0.0
    num_layers: int = 1

    def num_bytes(self, num_tokens: Numbers) -> Numbers:
        return num_tokens * self.bytes_per_token + (num_tokens > 0) * self.constant_bytes


@dataclass(frozen=True)
class Split:
    """Fetch the first tokens of a host prefix, compute the others again. seconds: until the suffix is computed too."""

    num_fetched_tokens: int
    num_recomputed_tokens: int
    seconds: float

    @property
    def choice(self) -> Literal["fetch all", "fetch part", "recompute all"]:
        if self.num_fetched_tokens == 0:
            return "recompute all"
        return "fetch part" if self.num_recomputed_tokens else "fetch all"


def split_seconds(
    prefill: PrefillModel,
    transfer: Transfer,
    state: CachedState,
    num_fetched: Numbers,
    num_total: int,
    is_overlapped: bool = True,
) -> Numbers:
    """Seconds until `num_total` tokens are there, the first `num_fetched` of them by the transfer.

    is_overlapped: layers compute while later layers load (`formulas.pipeline_s`); otherwise one after the other.
    """
    fetch_s = transfer.seconds(state.num_bytes(num_fetched))
    compute_s = prefill.seconds(num_total - num_fetched, num_fetched)
    if not is_overlapped:
        return fetch_s + compute_s
    wait_s = transfer.wait_s * (num_fetched > 0)
    return formulas.pipeline_s(wait_s, fetch_s - wait_s, compute_s, state.num_layers)


def best_split(
    prefill: PrefillModel,
    transfer: Transfer,
    state: CachedState,
    num_host_tokens: int,
    num_suffix_tokens: int,
    page_tokens: int = 1,
    is_overlapped: bool = True,
) -> Split:
    """The soonest of fetching all, some first pages, or none of a host prefix before a suffix; ties fetch less.

    A faster link never fetches less, nor does a slower prefill. Without overlap each further page saves at least as
    much as the one before, so all or nothing is best; with it, load and compute may balance in between. A hybrid model
    can be cut only where its linear state was kept: page_tokens = num_host_tokens allows all or nothing.

    O(num_host_tokens / page_tokens), vectorised. Raises ValueError for counts below 0 or a prefix that is not whole pages.
    """
    if page_tokens < 1 or num_host_tokens < 0 or num_suffix_tokens < 0:
        raise ValueError(
            f"expected counts of at least 0 and pages of at least 1 token, got "
            f"{num_host_tokens=}, {num_suffix_tokens=}, {page_tokens=}"
        )
    if num_host_tokens % page_tokens:
        raise ValueError(f"expected a host prefix of whole pages, got {num_host_tokens=}, {page_tokens=}")
    fetched = np.arange(0, num_host_tokens + 1, page_tokens, dtype=np.float64)
    num_total = num_host_tokens + num_suffix_tokens
    seconds = split_seconds(prefill, transfer, state, fetched, num_total, is_overlapped)
    best = int(np.argmax(seconds <= seconds.min() + TIE_S))
    num_fetched = int(fetched[best])
    return Split(num_fetched, num_host_tokens - num_fetched, float(seconds[best]))
