"""The formulas, one function each; sequence lengths may be arrays of float or int.

Source of the dense, hybrid and break-even forms: "Does tiered storage on top of the KV cache still have a future?"
(research note, 2026-03-13), sections 3 and 4; the rest says where it comes from. Units: tokens, bytes, seconds,
FLOP (a multiply and an add are two), bytes/s.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np

Numbers = TypeVar("Numbers", float, np.ndarray)

K_TOKENS = 1024
GIB_BYTES = 1024**3
GB_BYTES = 10**9


def linear_flops_per_token(num_active_params: float) -> float:
    """2 N: FLOP that one token takes in all weight matrices it is multiplied with (section 3.1).

    num_active_params: of a mixture of experts, only what a token is routed through (section 4, N_active).
    """
    return 2 * num_active_params


def attention_flops_per_pair(num_q_heads: int, head_dim: int, num_attention_layers: int) -> float:
    """4 n_q d L: FLOP of QK^T and of softmax(QK^T)V for one query and one key, over all full-attention layers (3.1)."""
    return 4 * num_q_heads * head_dim * num_attention_layers


def compute_s(flops: Numbers, mfu: float, peak_flops_per_s: float) -> Numbers:
    """FLOP / (MFU * peak): seconds of compute (section 2). mfu: share of the peak that is reached."""
    return flops / (mfu * peak_flops_per_s)


def attention_pairs(num_new: Numbers, num_prefix: Numbers, is_causal: bool = False) -> Numbers:
    """Pairs of query and key when `num_new` tokens attend to `num_prefix` tokens and to themselves.

    The source counts the full square, s^2 for a whole prompt. `is_causal`: what lies above the diagonal is skipped, as
    FlashAttention does with whole blocks of it, so that a prompt in two parts has as many pairs as in one.
    """
    return num_new * (num_prefix + num_new / 2) if is_causal else num_new * (num_prefix + num_new)


def prefill_s(
    num_new: Numbers,
    num_prefix: Numbers,
    s_per_token: float,
    s_per_pair: float,
    is_causal: bool = False,
    overhead_s: float = 0.0,
) -> Numbers:
    """(2 s N + 4 s^2 n_q d L) / (MFU * peak), section 3.1; after a cached prefix the new tokens attend over the whole.

    The coefficients are seconds: `compute_s` of the FLOP per token and per pair, or what was measured. overhead_s: of any
    forward pass, beside its arithmetic; no new token, no pass.
    """
    pairs = attention_pairs(num_new, num_prefix, is_causal)
    return num_new * s_per_token + pairs * s_per_pair + (num_new > 0) * overhead_s


def kv_bytes_per_token(
    num_kv_heads: int, head_dim: int, num_attention_layers: int, bytes_per_element: int
) -> int:
    """2 n_kv d L * bytes: K and V of one token in every full-attention layer (3.2). bytes_per_element: BF16 2, FP8 1."""
    return 2 * num_kv_heads * head_dim * num_attention_layers * bytes_per_element


def linear_state_bytes_per_layer(
    num_k_heads: int,
    num_v_heads: int,
    k_head_dim: int,
    v_head_dim: int,
    conv_kernel: int,
    state_bytes_per_element: int,
) -> int:
    """S_linear of section 4: what a gated delta-net layer remembers of a sequence of any length.

    A k x v matrix per value head, in the model's `mamba_ssm_dtype`, and the last inputs of the short convolution over
    q, k and v, in BF16 (shapes as in transformers, `Qwen3NextGatedDeltaNet`).
    """
    matrix_bytes = num_v_heads * k_head_dim * v_head_dim * state_bytes_per_element
    conv_channels = 2 * num_k_heads * k_head_dim + num_v_heads * v_head_dim
    return matrix_bytes + conv_channels * (conv_kernel - 1) * 2


def transfer_s(
    num_bytes: Numbers, bandwidth_bytes_per_s: float, latency_s: float = 0.0, queue_s: float = 0.0
) -> Numbers:
    """queue + latency + bytes / bandwidth: seconds until all bytes are there (section 2; 13.1 asks for the first two).

    bandwidth_bytes_per_s: what is reached, util * peak. No bytes: no transfer, so nothing is waited for.
    """
    return np.where(num_bytes > 0, queue_s + latency_s + num_bytes / bandwidth_bytes_per_s, 0.0)[()]


def pipeline_s(wait_s: Numbers, load_s: Numbers, compute_s: Numbers, num_layers: int) -> Numbers:
    """Seconds when each layer computes as soon as its own KV is there, while the next layer's KV is loaded.

    A two-stage pipeline with equal stages: l + (L - 1) max(l, c) + c after `wait_s`, where l and c are the L-th parts of
    `load_s` and `compute_s`. SGLang's HiCache loads layer by layer in this way.
    """
    load_layer_s, compute_layer_s = load_s / num_layers, compute_s / num_layers
    slower_s = np.maximum(load_layer_s, compute_layer_s)
    return wait_s + load_layer_s + (num_layers - 1) * slower_s + compute_layer_s


def crossing_tokens(
    prefill_s_per_token: float, prefill_s_per_token2: float, fetch_s_per_token: float, fetch_constant_s: float
) -> float | None:
    """s*: the context in tokens beyond which a fetch is faster; None where it always is, from the first token on.

    The positive root of a s^2 + (b - f) s - c with prefill a s^2 + b s and fetch f s + c. Without c it is section 3.3's
    form; latency, queueing and a constant linear state are c. prefill_s_per_token2 must be more than 0.
    """
    gain_s_per_token = prefill_s_per_token - fetch_s_per_token
    root = math.sqrt(gain_s_per_token**2 + 4 * prefill_s_per_token2 * fetch_constant_s)
    if gain_s_per_token < 0:
        return (root - gain_s_per_token) / (2 * prefill_s_per_token2)
    # The same root without a difference of nearly equal numbers.
    return 2 * fetch_constant_s / (gain_s_per_token + root) if fetch_constant_s > 0 else None


def min_bandwidth_bytes_per_s(
    num_bytes: float, prefill_s: float, bw_util: float, wait_s: float = 0.0
) -> float | None:
    """Bandwidth*(s): the peak bandwidth at which a fetch takes as long as the prefill (section 3.3).

    None where the prefill is over before the first byte could come (`wait_s`: latency and queue).
    """
    return num_bytes / (bw_util * (prefill_s - wait_s)) if prefill_s > wait_s else None


def capacity_tokens(memory_bytes: float, bytes_per_token: float, constant_bytes: float = 0.0) -> int:
    """Whole tokens of one sequence whose KV fits, were there nothing else in the memory (sections 6 and 9)."""
    return max(0, int((memory_bytes - constant_bytes) // bytes_per_token))
