"""The real server on a machine without a GPU: tiers, layouts, write policies, page sizes, schedulers, ranks.

A start costs tens of seconds, so each test takes one server through everything that one combination of
flags can show. "The same" always means equal tokens and equal log-probabilities, bit for bit.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from radiximp.serving import accelerator
from tests.server.server import Server, launch, run_to_exit

pytestmark = pytest.mark.skipif(accelerator.find() is not None, reason="there is an accelerator")

# Small enough that a few prompts push each other off the device, large enough for one and its answer.
IMPORTANCE = ["--radix-eviction-policy", "importance"]
SMALL_DEVICE = ["--max-total-tokens", "2048", "--chunked-prefill-size", "512", *IMPORTANCE]


def prompt(seed: int, num_tokens: int) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(1000, 40000) for _ in range(num_tokens)]


def answer(response: dict) -> tuple[list[int], list[float]]:
    """Tokens and log-probabilities of the answer."""
    meta = response["meta_info"]
    return response["output_ids"], [entry[0] for entry in meta["output_token_logprobs"]]


def cached(response: dict, tier: str | None = None) -> int:
    """Prompt tokens that came from the cache, or from one tier of it: device, host or storage."""
    meta = response["meta_info"]
    return meta["cached_tokens"] if tier is None else (meta["cached_tokens_details"] or {}).get(tier, 0)


def assert_restores_from_host(server: Server, num_tokens: int = 900, num_uses: int = 1) -> None:
    """Evict a prompt from the device by others, ask again: it comes from the host and nothing changes.

    Every prompt is used equally often, or the policy would rightly keep the one that was used more.
    """
    first = server.generate(prompt(1, num_tokens))
    for seed in (1, 2, 3, 4):
        for _ in range(num_uses - (seed == 1)):
            server.generate(prompt(seed, num_tokens))
    again = server.generate(prompt(1, num_tokens))
    assert cached(again, "host") > num_tokens // 2
    assert answer(again) == answer(first)


def test_defaults_serve_chat_and_cached_prefix_changes_nothing(model_path: Path) -> None:
    with launch() as server:
        assert "Paris" in server.generate("The capital of France is", 16)["text"]
        assert server.chat("Say hello.")["choices"][0]["message"]["content"].strip()

        for num_tokens, num_cached in ((40, 20), (300, 256), (3000, 2999), (2500, 130)):
            ids = prompt(num_tokens, num_tokens)
            server.flush()
            cold = server.generate(ids)
            server.flush()
            server.generate(ids[:num_cached], num_tokens=1)
            warm = server.generate(ids)
            assert cached(cold) == 0
            assert cached(warm) == num_cached
            assert answer(warm) == answer(cold)

            # The next turn finds the answer's own KV, which decode steps wrote.
            next_turn = ids + cold["output_ids"] + prompt(7, 30)
            warm = server.generate(next_turn)
            server.flush()
            cold = server.generate(next_turn)
            assert cached(warm) > num_tokens
            assert answer(warm) == answer(cold)

        # A batch of strangers changes nothing either.
        prompts = [prompt(seed, 50 + 37 * seed) for seed in range(8)]
        server.flush()
        alone = [answer(server.generate(ids)) for ids in prompts]
        server.flush()
        with ThreadPoolExecutor(len(prompts)) as pool:
            together = list(pool.map(lambda ids: answer(server.generate(ids)), prompts))
        assert together == alone


@pytest.mark.parametrize(
    "flags",
    [
        [
            "--page-size",
            "1",
            "--hicache-mem-layout",
            "layer_first",
            "--hicache-write-policy",
            "write_through",
        ],
        [
            *("--page-size", "16", "--hicache-mem-layout", "page_first_direct"),
            *("--hicache-write-policy", "write_back", "--disable-overlap-schedule"),
        ],
        [
            *("--page-size", "64", "--hicache-mem-layout", "page_first_direct"),
            *("--hicache-write-policy", "write_through_selective"),
        ],
    ],
    ids=["page1-layer_first-through", "page16-pf_direct-back-no_overlap", "page64-pf_direct-selective"],
)
def test_host_tier_restores_what_it_stored(flags: list[str]) -> None:
    with launch([*SMALL_DEVICE, *flags]) as server:
        # write_through_selective stores a prefix on its second use.
        assert_restores_from_host(server, num_uses=2 if "write_through_selective" in flags else 1)


def test_storage_backend_restores_after_a_restart(tmp_path: Path) -> None:
    flags = [
        "--page-size",
        "16",
        "--hicache-storage-backend",
        "file",
        "--enable-session-radix-cache",
    ]
    env = {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(tmp_path)}
    ids = prompt(5, 700)
    with launch(flags, env=env) as server:
        first = server.generate(ids)
        # Storage is written in the background, and nothing tells when: ask until it answers.
        for _ in range(50):
            server.flush()
            again = server.generate(ids)
            if cached(again, "storage") > 600:
                break
        assert cached(again, "storage") > 600
        assert answer(again) == answer(first)
    with launch(flags, env=env) as server:
        restored = server.generate(ids)
        assert cached(restored, "storage") > 600
        assert answer(restored) == answer(first)


def test_three_ranks(model_path: Path) -> None:
    with launch(["--tp-size", "3", *SMALL_DEVICE]) as server:
        assert_restores_from_host(server)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            ["--attention-backend", "flashinfer"],
            "--attention-backend flashinfer cannot be served without a GPU",
        ),
        (["--hicache-io-backend", "kernel"], "--hicache-io-backend kernel cannot be served without a GPU"),
    ],
)
def test_refuses_what_needs_an_accelerator(model_path: Path, flags: list[str], sentence: str) -> None:
    code, output = run_to_exit(["--enable-hierarchical-cache", *flags], model=model_path)
    assert code == 1
    assert sentence in output
    assert "Traceback" not in output
