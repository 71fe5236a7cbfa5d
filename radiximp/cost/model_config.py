"""A `ModelSpec` from the config.json of a Hugging Face model: dense, mixture of experts, or hybrid.

Refuses what the formulas do not describe, naming the key. N counts the matrices of the layers that a prompt token is
multiplied with; not the embedding, which is looked up, nor the output head, which a server applies to the last token.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from radiximp.cost import formulas
from radiximp.cost.specs import CostError, ModelSpec

# key -> why a model that has it is refused
_NOT_COVERED = {
    "kv_lora_rank": "latent attention (MLA)",
    "attention_chunk_size": "attention in chunks",
    "linear_attn_config": "this kind of linear attention",
    "attn_type_list": "this kind of linear attention",
    "hybrid_override_pattern": "state-space layers",
    "attn_layer_period": "state-space layers",
    "layers_block_type": "state-space layers",
    "mamba_d_state": "state-space layers",
    "ssm_cfg": "state-space layers",
    "is_encoder_decoder": "an encoder",
}
_MAX_LAYERS = 10_000
_GATED = ("silu", "swiglu")  # an MLP of three matrices
_STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class _Config:
    """Values of a config by key, with errors that name file and key."""

    def __init__(self, values: Mapping[str, Any], path: Path) -> None:
        self.values, self.path = values, path

    def error(self, text: str) -> CostError:
        return CostError(f"{self.path}: {text}")

    def count(self, *keys: str, default: int | None = None, highest: int = 10**9) -> int:
        """The first of the keys that is there, a whole number of at least 0; the default where none is."""
        for key in keys:
            value = self.values.get(key)
            if value is None:
                continue
            if type(value) is not int or not 0 <= value <= highest:
                raise self.error(f"{key}: expected a whole number up to {highest:,}, got {str(value)[:80]!r}")
            return value
        if default is None:
            raise self.error(f"missing key {' or '.join(map(repr, keys))}")
        return default

    def positive(self, *keys: str, default: int | None = None, highest: int = 10**9) -> int:
        found = self.count(*keys, default=default, highest=highest)
        if found == 0:
            raise self.error(f"{keys[0]}: expected at least 1, got 0")
        return found


def read_model(path: Path) -> ModelSpec:
    """The spec of the model in a config.json, or in the folder that has one. Raises CostError."""
    path = path / "config.json" if path.is_dir() else path
    if path.exists() and not path.is_file():
        raise CostError(f"cannot read {path}: it is not a file")
    try:
        values = orjson.loads(path.read_bytes())
    except OSError as error:
        raise CostError(f"cannot read {path}: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise CostError(f"{path}: expected JSON ({error})") from None
    if isinstance(values, dict) and isinstance(values.get("text_config"), dict):
        values = values["text_config"]  # a model that also sees
    if not isinstance(values, dict):
        raise CostError(f"{path}: expected a JSON object")
    return _spec(_Config(values, path))


def _spec(config: _Config) -> ModelSpec:
    _check_covered(config)
    hidden = config.positive("hidden_size")
    num_layers = config.positive("num_hidden_layers", highest=_MAX_LAYERS)
    num_q_heads = config.positive("num_attention_heads")
    num_kv_heads = config.positive("num_key_value_heads", default=num_q_heads)
    head_dim = config.positive("head_dim", default=hidden // num_q_heads)
    num_attention = _num_attention_layers(config, num_layers)
    num_linear = num_layers - num_attention
    # The query is projected twice where a gate of its width follows attention, as in Qwen3-Next and Qwen3.5.
    num_gates = bool(config.values.get("attn_output_gate", num_linear > 0))
    attention_params = hidden * head_dim * ((2 + num_gates) * num_q_heads + 2 * num_kv_heads)
    linear_params, state_bytes = _linear_layer(config, hidden) if num_linear else (0, 0)
    return ModelSpec(
        name=config.path.parent.name or config.path.name,
        num_active_params=num_attention * attention_params
        + num_linear * linear_params
        + _mlp_params(config, hidden, num_layers),
        num_attention_layers=num_attention,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        linear_state_bytes=num_linear * state_bytes,
        max_context_tokens=config.count("max_position_embeddings", default=0) or None,
    )


def _check_covered(config: _Config) -> None:
    for key, what in _NOT_COVERED.items():
        if config.values.get(key):
            raise config.error(f"{key}: models with {what} are not covered")
    if config.values.get("sliding_window") and config.values.get("use_sliding_window", True):
        raise config.error("sliding_window: models with attention in a window are not covered")
    activation = config.values.get("hidden_act")
    if activation is None:
        raise config.error("missing key 'hidden_act'")
    if activation not in _GATED:
        raise config.error(f"hidden_act: expected one of {', '.join(_GATED)}, got {str(activation)[:80]!r}")


def _num_attention_layers(config: _Config, num_layers: int) -> int:
    """Layers with full attention; the others are linear."""
    kinds = config.values.get("layer_types")
    if kinds is None:
        return num_layers // config.positive("full_attention_interval", default=1, highest=num_layers)
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise config.error(f"layer_types: expected a list of {num_layers} layers")
    for kind in kinds:
        if kind not in ("full_attention", "linear_attention"):
            raise config.error(f"layer_types: {str(kind)[:80]!r} is not covered")
    if "full_attention" not in kinds:
        raise config.error("layer_types: expected a layer with full_attention")
    return kinds.count("full_attention")


def _linear_layer(config: _Config, hidden: int) -> tuple[int, int]:
    """Weights and state bytes of one gated delta-net layer: q, k, v, gate and output, two numbers a value head."""
    k_heads, v_heads = config.positive("linear_num_key_heads"), config.positive("linear_num_value_heads")
    k_dim, v_dim = config.positive("linear_key_head_dim"), config.positive("linear_value_head_dim")
    kernel = config.positive("linear_conv_kernel_dim")
    dtype = config.values.get("mamba_ssm_dtype", "float32")
    if str(dtype) not in _STATE_BYTES:
        raise config.error(f"mamba_ssm_dtype: expected one of {', '.join(_STATE_BYTES)}, got {dtype!r}")
    params = hidden * (2 * k_heads * k_dim + 3 * v_heads * v_dim + 2 * v_heads)
    state_bytes = formulas.linear_state_bytes_per_layer(
        k_heads, v_heads, k_dim, v_dim, kernel, _STATE_BYTES[dtype]
    )
    return params, state_bytes


def _mlp_params(config: _Config, hidden: int, num_layers: int) -> int:
    """Weights of all MLPs that one token is multiplied with: dense ones, or routed and shared experts and the router."""
    num_experts = config.count("num_experts", "num_local_experts", "n_routed_experts", default=0)
    if num_experts == 0:
        return num_layers * 3 * hidden * config.positive("intermediate_size")
    expert = config.positive("moe_intermediate_size", "intermediate_size")
    shared = config.count("shared_expert_intermediate_size", default=0)
    shared = shared or config.count("n_shared_experts", default=0) * expert
    width = config.positive("num_experts_per_tok") * expert + shared
    num_dense = _num_dense_layers(config, num_layers)
    dense = num_dense * 3 * hidden * config.positive("intermediate_size") if num_dense else 0
    return dense + (num_layers - num_dense) * hidden * (3 * width + num_experts)


def _num_dense_layers(config: _Config, num_layers: int) -> int:
    """Layers of a mixture of experts that have a plain MLP."""
    dense = config.values.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise config.error("mlp_only_layers: expected a list")
    first = config.count("first_k_dense_replace", default=0)
    step = config.positive("decoder_sparse_step", default=1)
    return sum(n in dense or n < first or (n + 1) % step != 0 for n in range(num_layers))
