"""The observation kernel against its torch reference; run on a GPU, or with TRITON_INTERPRET=1 on the CPU."""

from __future__ import annotations

import itertools
import sys

import torch

from radiximp.importance.kernel import token_sums, token_sums_reference

# num_queries, num_heads, num_kv_heads, head_dim, num_keys, window
SHAPES = [
    (1, 2, 1, 16, 40, None),
    (8, 9, 3, 64, 200, None),
    (5, 4, 4, 80, 130, 50),
    (17, 4, 2, 32, 260, None),
    (3, 1, 1, 16, 2300, 700),  # more than one split
]


def check(device: str) -> int:
    """Raise AssertionError where they differ; returns the number of cases."""
    num_cases = 0
    for shape, dtype, reduction in itertools.product(
        SHAPES, (torch.float32, torch.bfloat16), ("mean", "max")
    ):
        num_queries, num_heads, num_kv_heads, head_dim, num_keys, window = shape
        generator = torch.Generator().manual_seed(num_keys)
        q = (2 * torch.randn(num_queries, num_heads, head_dim, generator=generator)).to(dtype).to(device)
        cache = torch.randn(2 * num_keys, num_kv_heads, head_dim, generator=generator).to(dtype).to(device)
        slots = torch.randperm(2 * num_keys, generator=generator)[:num_keys].to(torch.int32).to(device)
        positions = torch.arange(num_keys - num_queries, num_keys, device=device)
        case = q, cache, slots, positions, head_dim**-0.5, window, reduction
        for ours, reference in zip(token_sums(*case), token_sums_reference(*case), strict=True):
            worst = float((ours - reference).abs().max())
            assert worst < 1e-4, f"{shape} {dtype} {reduction}: differs by {worst}"
        num_cases += 1
    return num_cases


if __name__ == "__main__":
    print(check(sys.argv[1]), "cases equal the reference")
