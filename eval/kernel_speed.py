"""How far the observation kernel is from the time that reading the keys takes; needs a GPU.

    python -m eval.kernel_speed [--contexts 8192,32768,131072] [--batches 1,8,64] [--bandwidth-gbps X] [--json FILE]

One decode step of a batch in one layer (32 heads, 8 KV heads, 128 wide, bfloat16): every request's newest query over all its
keys. The floor is the bytes of those keys, read twice (two passes), over the bandwidth, which is measured by copying a
buffer of 1 GiB unless it is given.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from radiximp.replay.files import write_json

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 32, 8, 128
NUM_REPEATS = 20


def milliseconds(work) -> float:
    """Median time of `work` on the GPU."""
    for _ in range(3):
        work()
    times = []
    for _ in range(NUM_REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def copied_gbps() -> float:
    """Bytes read and written per second by a plain copy, in 1e9."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / (milliseconds(lambda: target.copy_(source)) * 1e6)


def measure(context: int, batch: int, bandwidth_gbps: float) -> dict:
    """One row: milliseconds of a step and of its floor."""
    from radiximp.importance.kernel import token_sums

    num_slots = min(context * batch, 1 << 21)
    keys = torch.randn(num_slots, NUM_KV_HEADS, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
    slots = torch.randint(num_slots, (batch, context), dtype=torch.int32, device="cuda")
    q = torch.randn(1, NUM_HEADS, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
    positions = torch.tensor([context - 1], device="cuda")

    def step() -> None:
        for row in slots:
            token_sums(q, keys, row, positions, HEAD_DIM**-0.5, None, "mean")

    step_ms = milliseconds(step)
    read_bytes = 2 * batch * context * NUM_KV_HEADS * HEAD_DIM * keys.element_size()
    floor_ms = read_bytes / (bandwidth_gbps * 1e6)
    return {"context": context, "batch": batch, "step_ms": step_ms, "floor_ms": floor_ms}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contexts", default="8192,32768,131072")
    parser.add_argument("--batches", default="1,8,64")
    parser.add_argument("--bandwidth-gbps", type=float)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("error: no GPU that torch can use; this measures nothing without one", file=sys.stderr)
        return 2
    bandwidth_gbps = args.bandwidth_gbps or copied_gbps()
    rows = []
    for context in map(int, args.contexts.split(",")):
        for batch in map(int, args.batches.split(",")):
            rows.append(row := measure(context, batch, bandwidth_gbps))
            print(f"context {context:>7,} batch {batch:>3}  {row['step_ms']:8.3f} ms  "
                  f"{row['step_ms'] / row['floor_ms']:6.2f} x the floor")  # fmt: skip
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        result = {"gpu": torch.cuda.get_device_name(), "bandwidth_gbps": bandwidth_gbps, "rows": rows}
        write_json(args.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
