"""Formulas, model configs and the split: against plain sums, and properties that must hold for any numbers."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radiximp import cost
from radiximp.cost import formulas, specs
from radiximp.cost.breakeven import Setup
from radiximp.cost.model_config import read_model
from radiximp.cost.predict import TIE_S, CachedState, PrefillModel, Transfer, best_split, split_seconds

DENSE, HYBRID = specs.MODELS
A100 = specs.find(specs.GPUS, "a100")
GIB = formulas.GIB_BYTES


def setup_of(model=DENSE, gpu=A100, num_gpus=2, mfu=0.4, bw_util=0.7, **more):
    return Setup(model, gpu, num_gpus, mfu, bw_util, **more)


def k(tokens):
    return None if tokens is None else tokens / 1024


def test_the_package_imports_nothing_of_the_others_but_config():
    for path in Path(cost.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("radiximp"):
                assert node.module.split(".")[1:2] in (["cost"], ["config"]), f"{path.name}: {node.module}"


# ---- formulas ----


def test_prefill_is_the_sources_formula_written_out():
    s, n, layers, n_q, d = 10_000, 14.0e9, 40, 40, 128
    expected_s = (2 * s * n + 4 * s**2 * n_q * d * layers) / (0.4 * 2 * 312e12)
    assert setup_of().prefill.seconds(s) == pytest.approx(expected_s, rel=1e-12)


def test_fetch_is_bytes_over_what_the_link_reaches():
    setup = setup_of()
    num_bytes = setup.state.num_bytes(10_000)
    assert num_bytes == 10_000 * 2 * 8 * 128 * 40 * 2
    assert setup.transfer(specs.Tier("x", 10)).seconds(num_bytes) == pytest.approx(num_bytes / (0.7 * 10e9))
    assert setup_of(kv_bytes_per_element=1).state.num_bytes(10_000) == num_bytes / 2


def test_latency_and_queue_come_before_the_bytes_and_only_where_there_are_any():
    transfer = Transfer(1e9, latency_s=0.25, queue_s=1.5)
    assert transfer.seconds(2e9) == 3.75
    assert transfer.seconds(0) == 0
    np.testing.assert_array_equal(transfer.seconds(np.array([0.0, 1e9])), [0, 2.75])


def test_a_suffix_attends_over_the_fetched_prefix():
    prefill = PrefillModel(s_per_token=1e-3, s_per_pair=1e-6, overhead_s=0.5)
    assert prefill.seconds(100, 900) == pytest.approx(100 * 1e-3 + 100 * 1000 * 1e-6 + 0.5)
    assert prefill.seconds(0, 900) == 0


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_causal_pairs_of_two_parts_are_those_of_the_whole(prefix, one, other):
    def pairs(new, before):
        return formulas.attention_pairs(new, before, is_causal=True)

    assert pairs(one, prefix) + pairs(other, prefix + one) == pytest.approx(pairs(one + other, prefix))


@pytest.mark.parametrize("load_s, compute_s", [(8.0, 4.0), (4.0, 8.0), (0.0, 8.0), (8.0, 0.0), (8.0, 8.0)])
def test_the_pipeline_is_what_stepping_through_the_layers_gives(load_s, compute_s):
    num_layers, wait_s = 4, 0.5
    loaded_s, computed_s = wait_s, wait_s
    for _ in range(num_layers):
        loaded_s += load_s / num_layers
        computed_s = max(computed_s, loaded_s) + compute_s / num_layers
    assert formulas.pipeline_s(wait_s, load_s, compute_s, num_layers) == pytest.approx(computed_s)


def test_linear_state_of_the_hybrid_model():
    # 48 layers: 48 heads of 128 x 128 in FP32, and 3 inputs of 2 x 2048 + 6144 channels in BF16.
    assert HYBRID.linear_state_bytes == 48 * (48 * 128 * 128 * 4 + 10240 * 3 * 2)
    with_state = setup_of(HYBRID, has_linear_state=True)
    assert with_state.state.num_bytes(0) == 0
    assert with_state.state.num_bytes(1) == HYBRID.linear_state_bytes + 65536
    remote = specs.Tier("remote", 0.35)
    assert with_state.crossing_tokens(remote) > setup_of(HYBRID).crossing_tokens(remote)


# ---- what the source says of sizes (section 6); the crossings are in test_breakeven_command.py ----


@pytest.mark.parametrize(
    "model, gib_per_10k_tokens, tokens_in_16_gib", [(DENSE, 1.526, 104_858), (HYBRID, 0.610, 262_144)]
)
def test_kv_growth_and_16_gib(model, gib_per_10k_tokens, tokens_in_16_gib):
    setup = setup_of(model)
    assert setup.state.num_bytes(10_000) / GIB == pytest.approx(gib_per_10k_tokens, abs=0.0005)
    # 104,857.6 tokens of the dense model: the source rounds, we count those that fit.
    assert setup.capacity_tokens(16 * GIB) == pytest.approx(tokens_in_16_gib, abs=1)


@pytest.mark.parametrize(
    "model, context, measured_s, implied_mfu, implied_causal_mfu",
    [(DENSE, 40_960, 5.130, 0.788, 0.573), (HYBRID, 262_144, 103.607, 0.637, 0.428)],
)
def test_measured_prefills_of_the_source_fit_neither_of_its_mfus(
    model, context, measured_s, implied_mfu, implied_causal_mfu
):
    """Section 10 measures TTFT; the formula meets it at an MFU that is neither 0.4 nor 0.9. A documented difference."""
    full = setup_of(model, mfu=1.0).prefill.seconds(context)
    causal = setup_of(model, mfu=1.0, is_causal=True).prefill.seconds(context)
    assert full / measured_s == pytest.approx(implied_mfu, abs=0.001)
    assert causal / measured_s == pytest.approx(implied_causal_mfu, abs=0.001)


@pytest.mark.parametrize("model, measured_gib_per_10k, ratio", [(DENSE, 4.681, 3.07), (HYBRID, 1.638, 2.68)])
def test_measured_memory_slopes_of_the_source_are_not_kv_growth(model, measured_gib_per_10k, ratio):
    """Section 10's slopes of GPU memory are three times the KV and follow from no formula. A documented difference."""
    kv_gib = setup_of(model).state.num_bytes(10_000) / GIB
    assert measured_gib_per_10k / kv_gib == pytest.approx(ratio, abs=0.01)


# ---- crossing ----

shares = st.floats(0.05, 1)
gbps = st.floats(0.001, 10_000)
models = st.sampled_from(specs.MODELS)
latencies_s = st.one_of(st.just(0.0), st.floats(1e-6, 100))
setups = st.builds(
    Setup, models, st.sampled_from(specs.GPUS), st.integers(1, 8), shares, shares,
    st.sampled_from([1, 2]), latencies_s, st.booleans(), st.booleans(),
)  # fmt: skip


@given(setups, gbps)
def test_crossing_is_where_both_take_equally_long(setup, gbps):
    tier = specs.Tier("x", gbps)
    crossing = setup.crossing_tokens(tier)

    def gain_s(tokens):
        return setup.prefill.seconds(tokens) - setup.transfer(tier).seconds(setup.state.num_bytes(tokens))

    if crossing is None:
        assert gain_s(1.0) >= 0 and gain_s(1e6) > 0
        return
    assert gain_s(crossing) == pytest.approx(0, abs=1e-6 * setup.prefill.seconds(crossing))
    assert gain_s(crossing * 1.01) > 0
    assert gain_s(crossing * 0.99) < 0


@given(setups, gbps)
def test_min_bandwidth_is_the_inverse_of_crossing(setup, gbps):
    crossing = setup.crossing_tokens(specs.Tier("x", gbps))
    if crossing is not None:
        assert setup.min_bandwidth_gbps(crossing) == pytest.approx(gbps, rel=1e-6)


def crossing_or_0(setup, gbps):
    return setup.crossing_tokens(specs.Tier("x", gbps)) or 0.0


@given(setups, gbps, st.floats(1, 100))
def test_more_bandwidth_crosses_no_later(setup, gbps, factor):
    assert crossing_or_0(setup, gbps * factor) <= crossing_or_0(setup, gbps) * (1 + 1e-9)


@given(setups, gbps, shares)
def test_higher_mfu_crosses_no_earlier(setup, gbps, mfu):
    low, high = (dataclasses.replace(setup, mfu=value) for value in sorted((mfu, setup.mfu)))
    assert crossing_or_0(high, gbps) >= crossing_or_0(low, gbps) * (1 - 1e-9)


@given(setups, gbps, st.integers(1, 64), st.floats(0, 10))
def test_more_gpus_and_more_latency_cross_no_earlier(setup, gbps, more_gpus, more_s):
    bigger = dataclasses.replace(setup, num_gpus=setup.num_gpus + more_gpus)
    later = dataclasses.replace(setup, latency_s=setup.latency_s + more_s)
    for other in (bigger, later):
        assert crossing_or_0(other, gbps) >= crossing_or_0(setup, gbps) * (1 - 1e-9)


@given(setups, gbps)
def test_fp8_kv_crosses_no_later_and_needs_no_more_bandwidth(setup, gbps):
    one, two = (dataclasses.replace(setup, kv_bytes_per_element=size) for size in (1, 2))
    assert crossing_or_0(one, gbps) <= crossing_or_0(two, gbps) * (1 + 1e-9)
    assert one.hbm_capacity_tokens >= two.hbm_capacity_tokens


def test_no_bandwidth_makes_up_for_a_latency_beyond_the_prefill():
    setup = setup_of(latency_s=10)
    assert setup.min_bandwidth_gbps(1000) is None
    assert setup.min_bandwidth_gbps(100_000) > 0


@given(setups, gbps, st.booleans())
def test_counting_attention_at_half_doubles_a_crossing_without_waits(setup, gbps, _):
    setup = dataclasses.replace(setup, latency_s=0.0, has_linear_state=False)
    full, causal = (dataclasses.replace(setup, is_causal=is_causal) for is_causal in (False, True))
    assert crossing_or_0(causal, gbps) == pytest.approx(2 * crossing_or_0(full, gbps))


# ---- best_split ----

prefills = st.builds(
    PrefillModel, st.floats(1e-7, 1e-3), st.floats(0, 1e-7), st.booleans(), st.sampled_from([0.0, 0.01])
)
transfers = st.builds(Transfer, st.floats(1e6, 1e12), st.sampled_from([0.0, 1e-3, 1.0]), st.floats(0, 1))
states = st.builds(CachedState, st.floats(1e3, 1e6), st.sampled_from([0.0, 1e8]), st.integers(1, 64))
pages = st.sampled_from([1, 16, 64])
counts = st.tuples(st.integers(0, 40), st.integers(0, 3000), pages)


def split_of(prefill, transfer, state, counts, is_overlapped):
    num_pages, num_suffix, page_tokens = counts
    return best_split(
        prefill, transfer, state, num_pages * page_tokens, num_suffix, page_tokens, is_overlapped
    )


def brute_force(prefill, transfer, state, num_host, num_suffix, page_tokens, is_overlapped):
    """Each split in plain Python, its layers stepped through."""
    found = []
    for fetched in range(0, num_host + 1, page_tokens):
        new = num_host - fetched + num_suffix
        pairs = new * fetched + new * new * (0.5 if prefill.is_causal else 1)
        compute_s = new * prefill.s_per_token + pairs * prefill.s_per_pair
        compute_s += prefill.overhead_s if new else 0
        load_s, now_s = 0.0, 0.0
        if fetched:
            load_s = (fetched * state.bytes_per_token + state.constant_bytes) / transfer.bandwidth_bytes_per_s
            now_s = transfer.latency_s + transfer.queue_s
        if is_overlapped:
            loaded_s = now_s
            for _ in range(state.num_layers):
                loaded_s += load_s / state.num_layers
                now_s = max(now_s, loaded_s) + compute_s / state.num_layers
        else:
            now_s += load_s + compute_s
        found.append((now_s, fetched))
    soonest_s = min(found)[0]
    return soonest_s, min(fetched for seconds, fetched in found if seconds <= soonest_s + TIE_S)


@given(prefills, transfers, states, counts, st.booleans())
def test_best_split_is_the_best_of_all(prefill, transfer, state, counts, is_overlapped):
    found = split_of(prefill, transfer, state, counts, is_overlapped)
    num_pages, num_suffix, page_tokens = counts
    num_host = num_pages * page_tokens
    soonest_s, fetched = brute_force(
        prefill, transfer, state, num_host, num_suffix, page_tokens, is_overlapped
    )
    assert found.seconds == pytest.approx(soonest_s, rel=1e-9, abs=2 * TIE_S)
    assert found.num_fetched_tokens + found.num_recomputed_tokens == num_host
    if found.num_fetched_tokens != fetched:  # rounding at the edge of a tie
        both_s = [
            split_seconds(prefill, transfer, state, tokens, num_host + num_suffix, is_overlapped)
            for tokens in (found.num_fetched_tokens, fetched)
        ]
        assert max(both_s) - soonest_s == pytest.approx(TIE_S, rel=1e-3)


@given(prefills, transfers, states, counts, st.booleans(), st.floats(1, 1000))
def test_a_faster_link_never_fetches_less(prefill, transfer, state, counts, is_overlapped, factor):
    faster = dataclasses.replace(transfer, bandwidth_bytes_per_s=transfer.bandwidth_bytes_per_s * factor)
    slow, fast = (split_of(prefill, link, state, counts, is_overlapped) for link in (transfer, faster))
    assert fast.num_fetched_tokens >= slow.num_fetched_tokens
    assert fast.seconds <= slow.seconds + 2 * TIE_S


@given(prefills, transfers, states, counts, st.booleans(), st.floats(1, 100), st.floats(1, 100))
def test_a_slower_prefill_never_fetches_less(prefill, transfer, state, counts, is_overlapped, one, other):
    slower = dataclasses.replace(
        prefill, s_per_token=prefill.s_per_token * one, s_per_pair=prefill.s_per_pair * other
    )
    quick, slow = (split_of(model, transfer, state, counts, is_overlapped) for model in (prefill, slower))
    assert slow.num_fetched_tokens >= quick.num_fetched_tokens


@given(prefills, transfers, states, counts, st.floats(0, 10))
def test_a_longer_queue_never_fetches_more(prefill, transfer, state, counts, more_s):
    longer = dataclasses.replace(transfer, queue_s=transfer.queue_s + more_s)
    now, later = (split_of(prefill, link, state, counts, True) for link in (transfer, longer))
    assert later.num_fetched_tokens <= now.num_fetched_tokens


@given(prefills, transfers, states, counts)
def test_without_overlap_it_is_all_or_nothing(prefill, transfer, state, counts):
    found = split_of(prefill, transfer, state, counts, is_overlapped=False)
    best_s = found.seconds
    ends_s = [
        split_seconds(prefill, transfer, state, fetched, counts[0] * counts[2] + counts[1], False)
        for fetched in (0, counts[0] * counts[2])
    ]
    assert min(ends_s) <= best_s + 2 * TIE_S + 1e-9 * best_s


def test_the_three_choices_and_a_tie():
    prefill, state = PrefillModel(1e-3, 0.0), CachedState(bytes_per_token=1e6, num_layers=10)

    def choose(bytes_per_s, is_overlapped=True):
        return best_split(prefill, Transfer(bytes_per_s), state, 1000, 0, 100, is_overlapped)

    assert choose(1e12).choice == "fetch all" and choose(1e12).num_fetched_tokens == 1000
    assert choose(1e7).choice == "recompute all" and choose(1e7).seconds == pytest.approx(1.0)
    middle = choose(1e9)
    assert (middle.choice, middle.num_fetched_tokens) == ("fetch part", 500)
    # Layer by layer: 0.05 s to load the first, nine times 0.05 s, 0.05 s to compute the last.
    assert middle.seconds == pytest.approx(0.55)
    # One after the other, every split takes the same second: none is fetched, however each sum is rounded.
    assert choose(1e9, is_overlapped=False).num_fetched_tokens == 0
    for token_s in (1 / 3000, 1e-3 / 7, 1e-3 / 11):
        link = Transfer(state.bytes_per_token / token_s)
        found = best_split(PrefillModel(token_s, 0.0), link, state, 1000, 0, is_overlapped=False)
        assert found.num_fetched_tokens == 0


def test_nothing_cached_and_a_hybrid_prefix_that_cannot_be_cut():
    prefill, state = PrefillModel(1e-3, 0.0), CachedState(1e6, num_layers=10)
    empty = best_split(prefill, Transfer(1e9), state, 0, 50)
    assert (empty.choice, empty.seconds) == ("recompute all", pytest.approx(0.05))
    whole = best_split(prefill, Transfer(1.5e9), state, 1000, 0, page_tokens=1000)
    assert (whole.choice, whole.seconds) == ("fetch all", pytest.approx(1 / 1.5))


@pytest.mark.parametrize(
    "counts, text",
    [
        ((100, 0, 64), "expected a host prefix of whole pages, got num_host_tokens=100, page_tokens=64"),
        ((-64, 0, 64), "counts of at least 0"),
        ((64, -1, 64), "num_suffix_tokens=-1"),
        ((64, 0, 0), "pages of at least 1 token"),
    ],
)
def test_counts_that_are_none(counts, text):
    with pytest.raises(ValueError, match=text):
        best_split(PrefillModel(1, 1), Transfer(1), CachedState(1), *counts)


def test_coefficients_that_are_none():
    with pytest.raises(ValueError, match="expected seconds of at least 0, got .*s_per_token=-1"):
        PrefillModel(-1, 0)
    for values in ((0,), (1, -1), (1, 0, -1), (float("nan"),)):
        with pytest.raises(ValueError, match="expected a bandwidth above 0 and waits of at least 0"):
            Transfer(*values)


# ---- config.json ----

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
