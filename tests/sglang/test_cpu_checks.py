"""Server arguments on the CPU platform: what is refused, in which words, and what is filled in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.plugins import load_plugins
from sglang.srt.server_args import ServerArgs, prepare_server_args

from radiximp.serving import accelerator
from radiximp.serving.cpu import defaults, is_installed
from radiximp.serving.cpu.checks import Refusal

pytestmark = pytest.mark.skipif(accelerator.find() is not None, reason="there is an accelerator")

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 1024,
    "vocab_size": 256,
    "torch_dtype": "bfloat16",
}


@pytest.fixture(autouse=True, scope="module")
def _plugins() -> None:
    load_plugins()
    assert is_installed()


def resolve(folder: Path, *flags: str, **config: object) -> ServerArgs:
    (folder / "config.json").write_text(json.dumps({**LLAMA, **config}))
    server_args = prepare_server_args(["--model-path", str(folder), "--skip-tokenizer-init", *flags])
    server_args.resolve_once()
    return server_args


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            "--attention-backend triton",
            "--attention-backend triton cannot be served without a GPU; "
            "supported here: radiximp_cpu or torch_native",
        ),
        ("--prefill-attention-backend fa3", "--prefill-attention-backend fa3 cannot be served"),
        ("--quantization fp8", "--quantization fp8 cannot be served without a GPU; supported here: unquant"),
        ("--kv-cache-dtype fp8_e5m2", "--kv-cache-dtype fp8_e5m2 cannot be served"),
        (
            "--speculative-algorithm NGRAM",
            "--speculative-algorithm NGRAM cannot be served without a GPU; leave it out",
        ),
        ("--cuda-graph-backend-decode full", "--cuda-graph-backend-decode full cannot be served"),
        (
            "--hicache-io-backend kernel",
            "--hicache-io-backend kernel cannot be served without a GPU; supported here: direct",
        ),
        (
            "--hicache-mem-layout=page_first",
            "--hicache-mem-layout page_first cannot be served without a GPU; "
            "supported here: layer_first or page_first_direct",
        ),
        ("--hicache-storage-backend mooncake", "--hicache-storage-backend mooncake cannot be served"),
        ("--enable-torch-compile", "--enable-torch-compile needs an accelerator"),
        ("--enable-deterministic-inference", "--enable-deterministic-inference needs an accelerator"),
        ("--pp-size 2", "--pp-size 2 cannot be served without a GPU; supported here: 1"),
        ("--device cuda", "--device cuda cannot be served without a GPU; supported here: cpu"),
    ],
)
def test_refused_flags(tmp_path: Path, flags: str, sentence: str) -> None:
    with pytest.raises(Refusal) as refused:
        resolve(tmp_path, *flags.split())
    assert refused.value.code.startswith(f"radiximp: {sentence}")
    assert "\n" not in refused.value.code


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised weights"),
        (
            {
                "architectures": ["Qwen3MoeForCausalLM"],
                "model_type": "qwen3_moe",
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 32,
            },
            "experts (MoE)",
        ),
        (
            {
                "architectures": ["DeepseekV2ForCausalLM"],
                "model_type": "deepseek_v2",
                "kv_lora_rank": 16,
                "qk_nope_head_dim": 16,
                "qk_rope_head_dim": 16,
                "v_head_dim": 16,
            },
            "multi-head latent attention (MLA)",
        ),
    ],
)
def test_refused_models(tmp_path: Path, config: dict, what: str) -> None:
    with pytest.raises(Refusal) as refused:
        resolve(tmp_path, **config)
    assert f"a model with {what} cannot be served without a GPU" in refused.value.code
    assert "\n" not in refused.value.code


def test_defaults(tmp_path: Path) -> None:
    resolved = resolving_view(resolve(tmp_path, "--enable-hierarchical-cache"))
    assert resolved.device == "cpu"
    assert resolved.attention_backend == "radiximp_cpu"
    assert resolved.sampling_backend == "pytorch"
    assert resolved.cuda_graph_config.decode.backend == "disabled"
    assert resolved.cuda_graph_config.prefill.backend == "disabled"
    assert resolved.hicache_io_backend == "direct"
    assert resolved.hicache_mem_layout == "page_first_direct"
    assert resolved.max_total_tokens == 4 * 1024
    assert resolved.chunked_prefill_size == 2048


@pytest.mark.parametrize(
    "multiplies, flags, dtype",
    [
        (True, "", "auto"),
        (False, "", "float32"),
        (False, "--dtype bfloat16", "bfloat16"),
        (True, "--dtype float32", "float32"),
    ],
)
def test_a_processor_without_bfloat16_serves_in_float32(tmp_path, monkeypatch, multiplies, flags, dtype):
    monkeypatch.setattr(defaults, "multiplies_bfloat16", lambda: multiplies)
    assert resolving_view(resolve(tmp_path, *flags.split())).dtype == dtype


def test_what_the_user_gave_is_kept(tmp_path: Path) -> None:
    flags = (
        "--enable-hierarchical-cache --hicache-mem-layout layer_first --attention-backend torch_native "
        "--chunked-prefill-size 256 --max-running-requests 7 --max-total-tokens 512 --page-size 16"
    )
    resolved = resolving_view(resolve(tmp_path, *flags.split()))
    assert resolved.hicache_mem_layout == "layer_first"
    assert resolved.attention_backend == "torch_native"
    assert resolved.chunked_prefill_size == 256
    assert resolved.max_running_requests == 7
    assert resolved.max_total_tokens == 512
