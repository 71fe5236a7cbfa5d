"""What one insert, match and evict costs at n leaves: stock Python core, Rust core and ours, side by side.

    python -m eval.tree_speed [--leaves 1000,10000,50000,200000] [--rounds N] [--json FILE] [--smoke]

Every variant is a real `UnifiedRadixCache` over a real allocator, without a model. All of them live in one
process and take turns within each round, in an order that rotates, so a ratio compares neighbours in time;
"python again" is a second stock cache and its ratio to the first is the noise floor. Torch runs on one
thread; the garbage collector is frozen after the build and off while a clock runs. The exit code is always
0: the lines at the end say PASS, MISS or "not measured".
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import statistics
import sys
from array import array
from collections import deque
from dataclasses import dataclass
from time import perf_counter_ns

import torch
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.plugins import load_plugins

SHARED_TOKENS = 64  # the prefix that the prompts of one group share
OWN_TOKENS = 4  # the rest of a prompt: one leaf, and the size of one eviction
LEAVES_PER_GROUP = 50
OPERATIONS = ("insert", "match", "evict")
MIN_CALLS = 5  # per block, however slow the variant is


@dataclass(frozen=True)
class Variant:
    """A name and the two settings that choose the tree core; None lets SGLang's registry choose."""

    name: str
    eviction_policy: str
    tree_core_backend: str | None


VARIANTS = (
    Variant("python", "lru", "python"),
    Variant("python again", "lru", "python"),
    Variant("rust", "lru", "rust"),
    Variant("ours", "importance", None),
)


class SteadyCache:
    """One cache held at `num_leaves` prompts: each timed block ends at the size it began with."""

    def __init__(self, variant: Variant, num_leaves: int, spare_tokens: int, seed: int = 0):
        self.variant = variant
        self._rng = random.Random(seed)
        self._num_groups = max(1, num_leaves // LEAVES_PER_GROUP)
        self._num_prompts = 0
        self._known: deque[RadixKey] = deque(maxlen=max(1, num_leaves // 2))
        capacity = num_leaves * OWN_TOKENS + self._num_groups * SHARED_TOKENS + spare_tokens
        self._allocator, self.cache = _build_cache(variant, capacity)
        for _ in range(num_leaves):
            self.cache.insert(self._fresh_prompt())

    def time_inserts(self, num_calls: int, budget_s: float) -> list[int]:
        """Nanoseconds of each `insert` of a prompt whose own tokens are new to the tree."""
        samples = self._timed(num_calls, budget_s, self.cache.insert, self._fresh_prompt)
        self.cache.evict(EvictParams(num_tokens=OWN_TOKENS * len(samples)))
        return samples

    def time_matches(self, num_calls: int, budget_s: float) -> list[int]:
        """Nanoseconds of each `match_prefix` of a prompt inserted not long ago."""

        def known_prompt() -> MatchPrefixParams:
            return MatchPrefixParams(key=self._rng.choice(self._known))

        return self._timed(num_calls, budget_s, self.cache.match_prefix, known_prompt)

    def time_evicts(self, num_calls: int, budget_s: float) -> list[int]:
        """Nanoseconds of each `evict` of OWN_TOKENS tokens."""
        params = EvictParams(num_tokens=OWN_TOKENS)
        refill = lambda: self.cache.insert(self._fresh_prompt())  # noqa: E731
        return self._timed(num_calls, budget_s, self.cache.evict, lambda: params, refill)

    @staticmethod
    def _timed(num_calls, budget_s, call, make_argument, after=lambda: None) -> list[int]:
        samples: list[int] = []
        deadline = perf_counter_ns() + int(budget_s * 1e9)
        while len(samples) < num_calls:
            argument = make_argument()
            start = perf_counter_ns()
            call(argument)
            end = perf_counter_ns()
            samples.append(end - start)
            after()
            if end > deadline and len(samples) >= MIN_CALLS:
                break
        return samples

    def _fresh_prompt(self) -> InsertParams:
        """A prompt as a finished request hands it over: the matched part in the tree's own slots."""
        group = self._rng.randrange(self._num_groups)
        own = 1 << 40 | self._num_prompts * OWN_TOKENS
        self._num_prompts += 1
        shared = range(group * SHARED_TOKENS, (group + 1) * SHARED_TOKENS)
        key = RadixKey(array("q", [*shared, *range(own, own + OWN_TOKENS)]))
        self._known.append(key)
        # Reads only: a match here would count as a use.
        num_matched, node_id, _ = self.cache.tree_core.match_full_device_prefix(key)
        matched = self.cache.path_device_indices(node_id)[:num_matched]
        fresh = self._allocator.alloc(len(key) - num_matched)
        if fresh is None:
            raise RuntimeError(f"{self.variant.name}: the pool is full; the cache is not at a steady state")
        return InsertParams(key=key, value=torch.cat((matched, fresh)), prev_prefix_len=num_matched)


def _build_cache(variant: Variant, capacity: int) -> tuple[TokenToKVPoolAllocator, UnifiedRadixCache]:
    kv_pool = MHATokenToKVPool(
        size=capacity,
        page_size=1,
        dtype=torch.bfloat16,
        head_num=1,
        head_dim=1,
        layer_num=1,
        device="cpu",
        enable_memory_saver=False,
    )
    allocator = TokenToKVPoolAllocator(
        size=capacity, dtype=torch.bfloat16, device="cpu", kvcache=kv_pool, need_sort=False
    )
    params = CacheInitParams(
        disable=False,
        req_to_token_pool=ReqToTokenPool(size=1, max_context_len=8, device="cpu", enable_memory_saver=False),
        token_to_kv_pool_allocator=allocator,
        page_size=1,
        tree_components=(ComponentType.FULL,),
        eviction_policy=variant.eviction_policy,
        tree_core_backend=variant.tree_core_backend,
    )
    return allocator, UnifiedRadixCache(params)


@dataclass(frozen=True)
class Settings:
    variants: tuple[Variant, ...]
    num_leaves: tuple[int, ...]
    num_rounds: int
    num_calls: int
    budget_s: float  # a block of calls stops here, but never before MIN_CALLS


# (leaves, operation, variant) -> one (median_us, mean_us, calls) per round
Samples = dict[tuple[int, str, str], list[tuple[float, float, int]]]


def measure(settings: Settings) -> Samples:
    """Run every size in turn; round 0 warms up and is not kept."""
    samples: Samples = {}
    for num_leaves in settings.num_leaves:
        spare_tokens = 4 * settings.num_calls * (OWN_TOKENS + SHARED_TOKENS)
        caches = [SteadyCache(variant, num_leaves, spare_tokens) for variant in settings.variants]
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            for round_index in range(settings.num_rounds + 1):
                shift = round_index % len(caches)
                for cache in caches[shift:] + caches[:shift]:
                    _measure_round(cache, num_leaves, settings, samples, keep=round_index > 0)
        finally:
            gc.enable()
            gc.unfreeze()
        print(f"measured {num_leaves} leaves", file=sys.stderr, flush=True)
    return samples


def _measure_round(
    cache: SteadyCache, num_leaves: int, settings: Settings, samples: Samples, keep: bool
) -> None:
    blocks = (cache.time_inserts, cache.time_matches, cache.time_evicts)
    for operation, time_block in zip(OPERATIONS, blocks, strict=True):
        times_ns = time_block(settings.num_calls, settings.budget_s)
        if keep:
            key = (num_leaves, operation, cache.variant.name)
            median_us, mean_us = statistics.median(times_ns) / 1e3, statistics.fmean(times_ns) / 1e3
            samples.setdefault(key, []).append((median_us, mean_us, len(times_ns)))


def memory_per_node(variants: tuple[Variant, ...], num_leaves: int) -> dict[str, float]:
    """Resident bytes per leaf of each variant (its share of the tree included), each in its own fork."""
    return {variant.name: _memory_in_fork(variant, num_leaves) for variant in variants}


def _memory_in_fork(variant: Variant, num_leaves: int) -> float:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            SteadyCache(variant, 100, 4096)  # what the first cache of a kind loads once
            gc.collect()
            before = _resident_bytes()
            cache = SteadyCache(variant, num_leaves, 4096)
            gc.collect()
            grown = _resident_bytes() - before
            del cache
            os.write(write_end, str(grown / num_leaves).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    if not text:
        raise RuntimeError(f"{variant.name}: the memory measurement failed")
    return float(text)


def _resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def rows(samples: Samples) -> list[dict]:
    """One row per size, operation and variant: the median of the rounds' medians, their min and max."""
    table = []
    for (num_leaves, operation, variant), rounds in samples.items():
        medians = [median_us for median_us, _, _ in rounds]
        table.append(
            {
                "leaves": num_leaves,
                "operation": operation,
                "variant": variant,
                "median_us": statistics.median(medians),
                "min_us": min(medians),
                "max_us": max(medians),
                "mean_us": statistics.fmean(mean_us for _, mean_us, _ in rounds),
                "calls_per_round": min(calls for _, _, calls in rounds),
            }
        )
    names = [variant.name for variant in VARIANTS]
    return sorted(
        table,
        key=lambda row: (OPERATIONS.index(row["operation"]), row["leaves"], names.index(row["variant"])),
    )


def ratio(samples: Samples, operation: str, top: tuple[int, str], bottom: tuple[int, str]) -> dict | None:
    """The ratio round by round of two (leaves, variant): its median, min and max; None if not measured."""
    tops = samples.get((top[0], operation, top[1]))
    bottoms = samples.get((bottom[0], operation, bottom[1]))
    if not tops or not bottoms:
        return None
    ratios = [above[0] / below[0] for above, below in zip(tops, bottoms, strict=True)]
    return {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}


def verdicts(samples: Samples, num_leaves: tuple[int, ...]) -> list[dict]:
    """The acceptance lines: what is compared, the limit, the ratio and PASS, MISS or not measured."""
    asked = [
        ("evict at 50000 leaves, ours / rust", 0.5, "evict", (50_000, "ours"), (50_000, "rust")),
        ("evict, ours at 200000 / ours at 1000 leaves", 3.0, "evict", (200_000, "ours"), (1_000, "ours")),
        ("evict, ours at 50000 / ours at 1000 leaves", 3.0, "evict", (50_000, "ours"), (1_000, "ours")),
    ]
    for operation in ("insert", "match"):
        for n in num_leaves:
            name = f"{operation} at {n} leaves, ours / python"
            asked.append((name, 1.15, operation, (n, "ours"), (n, "python")))
    lines = []
    for name, limit, operation, top, bottom in asked:
        measured = ratio(samples, operation, top, bottom)
        if measured is None:
            result = "not measured"
        else:
            result = "PASS" if measured["median"] <= limit else "MISS"
        lines.append({"name": name, "limit": limit, "ratio": measured, "result": result})
    return lines


def noise_floor(samples: Samples, num_leaves: tuple[int, ...]) -> list[dict]:
    """The ratio of the two identical stock caches, per operation and size."""
    floors = []
    for operation in OPERATIONS:
        for n in num_leaves:
            measured = ratio(samples, operation, (n, "python again"), (n, "python"))
            if measured is not None:
                floors.append({"name": f"{operation} at {n} leaves", "ratio": measured})
    return floors


def environment(settings: Settings) -> dict:
    """What the figures depend on: machine, versions and settings."""
    from importlib.metadata import version

    return {
        "machine": platform.machine(),
        "num_cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "sglang": version("sglang"),
        "radiximp": version("radiximp"),
        "gc": "frozen after the build, disabled while timing",
        "rounds": settings.num_rounds,
        "calls_per_block": settings.num_calls,
        "shared_tokens": SHARED_TOKENS,
        "own_tokens": OWN_TOKENS,
        "leaves_per_group": LEAVES_PER_GROUP,
    }


def print_report(report: dict) -> None:
    """The figures as plain text, ratios last."""
    heads = ("median us", "min", "max", "mean")
    print(f"{'operation':9} {'leaves':>8}  {'variant':13}" + "".join(f" {head:>10}" for head in heads))
    for row in report["rows"]:
        print(
            f"{row['operation']:9} {row['leaves']:>8}  {row['variant']:13} {row['median_us']:>10.1f} "
            f"{row['min_us']:>10.1f} {row['max_us']:>10.1f} {row['mean_us']:>10.1f}"
        )
    print(f"\nresident bytes per leaf, {report['memory_leaves']} leaves")
    for name, num_bytes in report["memory_per_leaf_bytes"].items():
        print(f"  {name:13} {num_bytes:>8.0f}")
    print("\nnoise floor: python again / python")
    for floor in report["noise_floor"]:
        print(f"  {floor['name']:45} {_ratio_text(floor['ratio'])}")
    print("\nacceptance")
    for line in report["verdicts"]:
        print(f"  {line['result']:12} {line['name']:45} {_ratio_text(line['ratio'])}, limit {line['limit']}")


def _ratio_text(measured: dict | None) -> str:
    if measured is None:
        return "-"
    return f"{measured['median']:.3f} ({measured['min']:.3f} .. {measured['max']:.3f})"


def main(argv: list[str] | None = None) -> int:
    names = [variant.name for variant in VARIANTS]
    parser = argparse.ArgumentParser(prog="python -m eval.tree_speed", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--leaves", default="1000,10000,50000,200000", help="numbers of leaves (default %(default)s)"
    )
    parser.add_argument(
        "--rounds", type=int, default=7, metavar="N", help="rounds kept (default %(default)s)"
    )
    parser.add_argument("--calls", type=int, default=100, help="calls per block (default %(default)s)")
    parser.add_argument("--variants", default=",".join(names), help="comma-separated (default: all)")
    parser.add_argument("--memory-leaves", type=int, default=50_000, help="leaves of the memory figure")
    parser.add_argument("--json", metavar="FILE", help="write the report there as JSON")
    parser.add_argument("--smoke", action="store_true", help="a few seconds at 200 leaves: does it run")
    args = parser.parse_args(argv)
    if args.smoke:
        args.leaves, args.rounds, args.calls, args.memory_leaves = "200", 2, 10, 500
    unknown = set(args.variants.split(",")) - set(names)
    if unknown:
        parser.error(f"--variants: {', '.join(sorted(unknown))} not among {', '.join(names)}")

    torch.set_num_threads(1)
    load_plugins()
    settings = Settings(
        variants=tuple(variant for variant in VARIANTS if variant.name in args.variants.split(",")),
        num_leaves=tuple(int(n) for n in args.leaves.split(",")),
        num_rounds=args.rounds,
        num_calls=args.calls,
        budget_s=1.0,
    )
    # First, while the process is small: a fork shares what its parent has already touched.
    memory_variants = tuple(variant for variant in settings.variants if variant.name != "python again")
    memory = memory_per_node(memory_variants, args.memory_leaves)
    samples = measure(settings)
    report = {
        "environment": environment(settings),
        "rows": rows(samples),
        "memory_leaves": args.memory_leaves,
        "memory_per_leaf_bytes": memory,
        "noise_floor": noise_floor(samples, settings.num_leaves),
        "verdicts": verdicts(samples, settings.num_leaves),
    }
    print_report(report)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(report, file, indent=1)
            file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
