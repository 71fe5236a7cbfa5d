"""CPU attention against torch_native, against float64, and against itself in other company."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from tests.sglang.attention_rig import Rig, Shape

# bfloat16 keeps 8 bits; outputs are averages of standard normal values.
TOLERANCE = 2**-7

SHAPES = [
    Shape(),
    Shape(num_heads=4, num_kv_heads=4, head_dim=32),
    Shape(num_heads=8, num_kv_heads=1, head_dim=128),
    Shape(num_heads=6, num_kv_heads=2, head_dim=80),
    Shape(window=100),
    Shape(window=7),
]


def random_batch(rig: Rig, seed: int, max_tokens: int, mode: ForwardMode):
    choose = random.Random(seed)
    requests = choose.sample(range(len(rig.req_to_token)), choose.randint(1, 5))
    lengths = [choose.choice([1, 2, 63, 64, 65, choose.randint(3, max_tokens)]) for _ in requests]
    if mode.is_decode():
        prefixes = [length - 1 for length in lengths]
    else:
        prefixes = [choose.choice([0, length - 1, choose.randrange(length)]) for length in lengths]
    return rig.batch(requests, lengths, prefixes, mode)


def new_tokens(rig: Rig, batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    num_tokens = len(batch.out_cache_loc)
    kv_heads = rig.shape.num_kv_heads
    return (
        rig.random(num_tokens, rig.shape.num_heads),
        rig.random(num_tokens, kv_heads).view(num_tokens, kv_heads, -1),
        rig.random(num_tokens, kv_heads).view(num_tokens, kv_heads, -1),
    )


@pytest.mark.parametrize("mode", [ForwardMode.EXTEND, ForwardMode.DECODE], ids=["extend", "decode"])
@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_torch_native_and_float64(shape: Shape, page_size: int, mode: ForwardMode) -> None:
    rig = Rig(shape, num_slots=4096, max_tokens=512, page_size=page_size, seed=page_size)
    for seed in range(6):
        batch = random_batch(rig, seed, 512, mode)
        q, k, v = new_tokens(rig, batch)
        ours = rig.run(rig.ours, batch, q, k, v)
        native = rig.run(rig.torch_native, batch, q, k, v)
        torch.testing.assert_close(ours, native, atol=TOLERANCE, rtol=TOLERANCE)
        torch.testing.assert_close(ours.double(), rig.reference(batch, q), atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("shape", [Shape(), Shape(window=100)], ids=str)
def test_result_does_not_depend_on_cached_part_chunks_or_batch(shape: Shape) -> None:
    length = 700
    rig = Rig(shape, num_slots=4096, max_tokens=length)
    whole = rig.batch([0], [length], [0], ForwardMode.EXTEND)
    q, k, v = new_tokens(rig, whole)
    expected = rig.run(rig.ours, whole, q, k, v)

    for boundary in (1, 63, 64, 65, 200, 511, 512, 513, length - 1):
        suffix = rig.batch([0], [length], [boundary], ForwardMode.EXTEND)
        part = rig.run(rig.ours, suffix, q[boundary:], k[boundary:], v[boundary:])
        assert torch.equal(part, expected[boundary:])

    others = rig.batch([1, 0, 2], [300, length, 5], [0, 350, 4], ForwardMode.EXTEND)
    strangers = new_tokens(rig, others)
    mixed = [torch.cat((x[:300], own[350:], x[-1:])) for x, own in zip(strangers, (q, k, v), strict=True)]
    assert torch.equal(rig.run(rig.ours, others, *mixed)[300 : 300 + 350], expected[350:])


@pytest.mark.parametrize("shape", [Shape(), Shape(window=100)], ids=str)
def test_every_decode_step_gives_the_bits_of_an_extend(shape: Shape) -> None:
    assert decode_steps_unlike_extend(shape, length=700) == []


# (MKL's, oneDNN's) newest instruction set; kernels differ from one to the next.
@pytest.mark.parametrize(
    "limits",
    [("AVX512_E3", "AVX512_CORE_BF16"), ("AVX512_E1", "AVX512_CORE_VNNI"), ("AVX2", "AVX2")],
    ids=lambda limits: limits[0],
)
def test_every_decode_step_gives_the_bits_of_an_extend_on_older_processors(limits: tuple[str, str]) -> None:
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("this processor is one of the older ones; the test above is for it")
    code = (
        "from tests.sglang.test_cpu_attention import Shape, decode_steps_unlike_extend as steps;"
        "print(steps(Shape(), 1500), steps(Shape(num_heads=8, num_kv_heads=2, head_dim=128), 1500))"
    )
    environment = {"MKL_ENABLE_INSTRUCTIONS": limits[0], "ONEDNN_MAX_CPU_ISA": limits[1]}
    result = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "[] []"


def decode_steps_unlike_extend(shape: Shape, length: int) -> list[int]:
    """Positions + 1 of one request at which a decode step's bits are not those of the whole extend."""
    rig = Rig(shape, num_slots=2 * length, max_tokens=length)
    whole = rig.batch([0], [length], [0], ForwardMode.EXTEND)
    q, k, v = new_tokens(rig, whole)
    expected = rig.run(rig.ours, whole, q, k, v)
    unlike = []
    for num_tokens in range(1, length + 1):
        step = rig.batch([0], [num_tokens], [num_tokens - 1], ForwardMode.DECODE)
        row = slice(num_tokens - 1, num_tokens)
        if not torch.equal(rig.run(rig.ours, step, q[row], k[row], v[row]), expected[row]):
            unlike.append(num_tokens)
    return unlike


def median_ratio(slow, fast, num_rounds: int = 7) -> float:
    """Median time of `slow` over that of `fast`, measured in turn."""
    times: dict[object, list[float]] = {slow: [], fast: []}
    for _ in range(num_rounds):
        for work in times:
            begin = time.perf_counter()
            work()
            times[work].append(time.perf_counter() - begin)
    return statistics.median(times[slow]) / statistics.median(times[fast])


def test_short_suffix_on_a_long_prefix_is_five_times_faster_than_torch_native() -> None:
    rig = Rig(Shape(), num_slots=8192, max_tokens=4096)
    batch = rig.batch([0], [4096], [4080], ForwardMode.EXTEND)
    q, k, v = new_tokens(rig, batch)
    ratio = median_ratio(
        lambda: rig.run(rig.torch_native, batch, q, k, v), lambda: rig.run(rig.ours, batch, q, k, v)
    )
    print(f"torch_native / ours, 16 new of 4,096: {ratio:.1f}")
    assert ratio >= 5


def test_decode_is_no_slower_than_torch_native() -> None:
    rig = Rig(Shape(), num_slots=16384, max_tokens=2048)
    lengths = [2048, 1500, 900, 300]
    batch = rig.batch([0, 1, 2, 3], lengths, [n - 1 for n in lengths], ForwardMode.DECODE)
    q, k, v = new_tokens(rig, batch)
    ratio = median_ratio(
        lambda: rig.run(rig.torch_native, batch, q, k, v),
        lambda: rig.run(rig.ours, batch, q, k, v),
        num_rounds=21,
    )
    print(f"torch_native / ours, decode: {ratio:.1f}")
    assert ratio >= 1
