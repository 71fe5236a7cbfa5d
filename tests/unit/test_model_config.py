"""A model from its config.json: the known models again, experts and hybrids, and what is refused."""

from __future__ import annotations

import orjson
import pytest

from radiximp.cost import specs
from radiximp.cost.model_config import read_model

DENSE, HYBRID = specs.MODELS

QWEN3_14B = {
    "hidden_act": "silu", "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 17408, "max_position_embeddings": 40960,
    "sliding_window": None, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
QWEN35_27B = {
    "attn_output_gate": True, "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu",
    "hidden_size": 5120, "intermediate_size": 17408, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_value_head_dim": 128,
    "mamba_ssm_dtype": "float32", "max_position_embeddings": 262144, "mlp_only_layers": [],
    "num_attention_heads": 24, "num_hidden_layers": 64, "num_key_value_heads": 4,
}  # fmt: skip
QWEN3_30B_A3B = {
    "decoder_sparse_step": 1, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
    "intermediate_size": 6144, "mlp_only_layers": [], "moe_intermediate_size": 768, "num_attention_heads": 32,
    "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
}  # fmt: skip


@pytest.fixture
def model_of(tmp_path):
    def read(config):
        path = tmp_path / "a-model" / "config.json"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(orjson.dumps(config))
        return read_model(path.parent)

    return read


SHAPE = ("num_attention_layers", "num_q_heads", "num_kv_heads", "head_dim", "linear_state_bytes", "max_context_tokens")  # fmt: skip


@pytest.mark.parametrize(
    "config, named, over",
    [(QWEN3_14B, DENSE, 0.06), ({"text_config": QWEN35_27B, "vision_config": {}}, HYBRID, 0.11)],
)
def test_a_config_gives_the_known_model_but_for_the_round_n(model_of, config, named, over):
    model = model_of(config)
    assert [getattr(model, key) for key in SHAPE] == [getattr(named, key) for key in SHAPE]
    # N of the source is the number in the name, which has the embedding and the output head in it.
    assert named.num_active_params / model.num_active_params == pytest.approx(1 + over, abs=0.005)


def test_weights_of_a_dense_model_are_its_matrices(model_of):
    layer = 5120 * 5120 * 2 + 2 * 5120 * 1024 + 3 * 5120 * 17408
    assert model_of(QWEN3_14B).num_active_params == 40 * layer
    assert model_of(QWEN3_14B).name == "a-model"


def test_layer_types_say_the_same_as_the_interval(model_of):
    kinds = ["linear_attention"] * 3 + ["full_attention"]
    listed = {**QWEN35_27B, "layer_types": kinds * 16}
    del listed["full_attention_interval"]
    assert model_of(listed) == model_of(QWEN35_27B)


def test_experts_count_where_a_token_is_routed(model_of):
    attention = 2 * 2048 * 4096 + 2 * 2048 * 512
    assert model_of(QWEN3_30B_A3B).num_active_params == 48 * (attention + 8 * 3 * 2048 * 768 + 2048 * 128)
    mixtral = {**QWEN3_14B, "num_local_experts": 8, "num_experts_per_tok": 2}
    dense = model_of(QWEN3_14B).num_active_params
    assert model_of(mixtral).num_active_params == dense + 40 * (3 * 5120 * 17408 + 5120 * 8)


def test_shared_experts_and_dense_layers(model_of):
    base = model_of(QWEN3_30B_A3B).num_active_params
    expert = 3 * 2048 * 768
    shared = {**QWEN3_30B_A3B, "n_shared_experts": 2}
    assert model_of(shared).num_active_params == base + 48 * 2 * expert
    wide = {**QWEN3_30B_A3B, "shared_expert_intermediate_size": 768}
    assert model_of(wide).num_active_params == base + 48 * expert
    change = 3 * 2048 * 6144 - 8 * expert - 2048 * 128
    for key, value, num_dense in (
        *(("first_k_dense_replace", 3, 3), ("mlp_only_layers", [0, 5], 2), ("decoder_sparse_step", 5, 39)),
    ):
        assert model_of({**QWEN3_30B_A3B, key: value}).num_active_params == base + num_dense * change


def test_heads_that_a_config_leaves_out(model_of):
    config = {
        key: value for key, value in QWEN3_14B.items() if key not in ("num_key_value_heads", "head_dim")
    }
    model = model_of(config)
    assert (model.num_kv_heads, model.head_dim) == (40, 128)


def without(config, key):
    return {name: value for name, value in config.items() if name != key}


@pytest.mark.parametrize(
    "config, text",
    [
        *((without(QWEN3_14B, key), f"missing key '{key}'") for key in (
            "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act"
        )),
        (without(QWEN35_27B, "linear_num_value_heads"), "missing key 'linear_num_value_heads'"),
        (without(QWEN3_30B_A3B, "num_experts_per_tok"), "missing key 'num_experts_per_tok'"),
        ({**QWEN3_14B, "kv_lora_rank": 512}, "kv_lora_rank: models with latent attention (MLA) are not covered"),
        ({**QWEN3_14B, "mamba_d_state": 16}, "mamba_d_state: models with state-space layers are not covered"),
        ({**without(QWEN3_14B, "use_sliding_window"), "sliding_window": 4096},
         "sliding_window: models with attention in a window are not covered"),
        ({**QWEN3_14B, "hidden_act": "gelu"}, "hidden_act: expected one of silu, swiglu, got 'gelu'"),
        ({**QWEN3_14B, "layer_types": ["full_attention"]}, "layer_types: expected a list of 40 layers"),
        ({**QWEN3_14B, "layer_types": ["sliding_attention"] * 40}, "layer_types: 'sliding_attention' is not covered"),
        ({**QWEN35_27B, "layer_types": ["linear_attention"] * 64}, "layer_types: expected a layer with full_attention"),
        ({**QWEN35_27B, "mamba_ssm_dtype": ["x"]}, "mamba_ssm_dtype: expected one of float32, bfloat16, float16, got ['x']"),
        ({**QWEN35_27B, "full_attention_interval": 65}, "full_attention_interval: expected a whole number up to 64, got '65'"),
        ({**QWEN3_14B, "hidden_size": "5120"}, "hidden_size: expected a whole number up to 1,000,000,000, got '5120'"),
        ({**QWEN3_14B, "num_attention_heads": 0}, "num_attention_heads: expected at least 1, got 0"),
        ({**QWEN3_14B, "num_attention_heads": True}, "num_attention_heads: expected a whole number up to 1,000,000,000, got 'True'"),
        ({**QWEN3_30B_A3B, "mlp_only_layers": 3}, "mlp_only_layers: expected a list"),
        ([], "expected a JSON object"),
    ],
)  # fmt: skip
def test_a_config_that_is_not_understood(model_of, tmp_path, config, text):
    with pytest.raises(specs.CostError) as error:
        model_of(config)
    assert str(error.value) == f"{tmp_path}/a-model/config.json: {text}"


def test_a_config_that_cannot_be_read(tmp_path):
    with pytest.raises(specs.CostError, match="cannot read .*/config.json: No such file"):
        read_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(specs.CostError, match="config.json: expected JSON"):
        read_model(tmp_path)
