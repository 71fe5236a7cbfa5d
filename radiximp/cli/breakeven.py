"""`radiximp breakeven`: from which context on is fetching cached KV faster than computing it again?

A roofline, not a measurement: what comes out holds for the utilisations that go in.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from radiximp import __version__
from radiximp.cli import CommandError
from radiximp.cost import figures, specs
from radiximp.cost.breakeven import Row, Setup, row_of
from radiximp.cost.formulas import GIB_BYTES
from radiximp.cost.model_config import read_model
from radiximp.replay import files, plot, table

STDOUT = "-"
OWN_TIER = "custom"
_MAX_GPUS = 1024
_MAX_GBPS = 1e6
_LEAST_GBPS = 1e-6
_MAX_CONTEXT = 10**9
_MAX_LATENCY_MS = 1e6
_MAX_TIERS, _MAX_NAME = 8, 12  # that one figure can show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Numbers come as text: `_number` says in one line what is wrong with them."""
    parser.add_argument(
        "--model", required=True, metavar="NAME", help=f"{specs.names(specs.MODELS)}, or a config.json"
    )
    parser.add_argument("--gpu", required=True, metavar="NAME", help=specs.names(specs.GPUS))
    parser.add_argument("--num-gpus", default="1", metavar="N", help="that share the model (default 1)")
    parser.add_argument(
        "--tier", metavar="LIST",
        help="where KV is fetched from: hbm, dram, rdma, ssd, remote, or NAME=GB/s (default the five)",
    )  # fmt: skip
    parser.add_argument("--bandwidth-gbps", metavar="X", help="instead of --tier: one of X GB/s")
    parser.add_argument(
        "--mfu", default="0.4", metavar="F",
        help="share of the peak BF16 FLOP/s that a prefill reaches (default 0.4)",
    )  # fmt: skip
    parser.add_argument(
        "--bw-util", default="0.7", metavar="F",
        help="share of its bandwidth that a transfer reaches (default 0.7)",
    )  # fmt: skip
    parser.add_argument("--kv-bytes", default="2", metavar="1|2", help="of a KV element (default 2; FP8: 1)")
    parser.add_argument(
        "--latency-ms", default="0", metavar="MS", help="before the first byte comes (default 0)"
    )
    parser.add_argument(
        "--context", default="32768", metavar="TOKENS", help="for the least bandwidth (default 32768)"
    )
    parser.add_argument(
        "--causal", action="store_true", help="count attention at half, for kernels that skip what is masked"
    )
    parser.add_argument(
        "--linear-state", action="store_true", help="a fetch also moves the state of linear-attention layers"
    )
    parser.add_argument(
        "--json", metavar="FILE", help="write the rows there; - prints them instead of a table"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them: .png, .svg or .pdf")


def run(args: argparse.Namespace) -> int:
    """Print a row per tier, 0; user errors raise `CommandError`."""
    try:
        return _run(args)
    except (specs.CostError, files.FileError, plot.PlotError) as error:
        raise CommandError(str(error)) from error


def _run(args: argparse.Namespace) -> int:
    setup = setup_of(args)
    tiers = tiers_of(args, setup)
    context_tokens = int(_number(args.context, "--context", 1, _MAX_CONTEXT, is_whole=True))
    check_files(args)
    rows = [row_of(setup, tier, context_tokens) for tier in tiers]
    result = as_json(rows, setup, context_tokens)
    if args.json not in (None, STDOUT):
        files.write_json(Path(args.json), result)
    if args.plot:
        draw(args.plot, setup, tiers)
    if args.json == STDOUT:
        sys.stdout.write(orjson.dumps(result, option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        show(rows, setup, tiers, context_tokens)
    return 0


def setup_of(args: argparse.Namespace) -> Setup:
    """Model, GPUs and assumptions. Raises CommandError and CostError."""
    model = specs.find(specs.MODELS, args.model)
    if model is None and not os.path.exists(args.model):  # never raises, as Path.exists does for a long name
        raise CommandError(
            f"--model: expected one of {specs.names(specs.MODELS)}, or the path of a config.json, "
            f"got {args.model[:80]!r}"
        )
    gpu = specs.find(specs.GPUS, args.gpu)
    if gpu is None:
        raise CommandError(f"--gpu: expected one of {specs.names(specs.GPUS)}, got {args.gpu[:80]!r}")
    model = model or read_model(Path(args.model))
    if args.linear_state and not model.linear_state_bytes:
        raise CommandError(f"--linear-state: {model.name} has no linear-attention layers")
    return Setup(
        model=model,
        gpu=gpu,
        num_gpus=int(_number(args.num_gpus, "--num-gpus", 1, _MAX_GPUS, is_whole=True)),
        mfu=_share(args.mfu, "--mfu"),
        bw_util=_share(args.bw_util, "--bw-util"),
        kv_bytes_per_element=int(_number(args.kv_bytes, "--kv-bytes", 1, 2, is_whole=True)),
        latency_s=_number(args.latency_ms, "--latency-ms", 0, _MAX_LATENCY_MS) / 1000,
        is_causal=args.causal,
        has_linear_state=args.linear_state,
    )


def tiers_of(args: argparse.Namespace, setup: Setup) -> list[specs.Tier]:
    """The tiers asked for, in that order; all that are known by default."""
    known = specs.tiers_of(setup.gpu, setup.num_gpus)
    if args.bandwidth_gbps is not None:
        if args.tier is not None:
            raise CommandError("--tier and --bandwidth-gbps: give one of them")
        return [specs.Tier(OWN_TIER, _gbps(args.bandwidth_gbps, "--bandwidth-gbps"))]
    if args.tier is None:
        return known
    tiers = [_tier(part.strip(), known) for part in args.tier.split(",")]
    if len({tier.name for tier in tiers}) < len(tiers):
        raise CommandError(f"--tier: expected each name once, got {args.tier[:80]!r}")
    if len(tiers) > _MAX_TIERS:
        raise CommandError(f"--tier: expected at most {_MAX_TIERS}, got {len(tiers)}")
    return tiers


def _tier(text: str, known: Sequence[specs.Tier]) -> specs.Tier:
    name, is_own, gbps = text.partition("=")
    if is_own and name and name.isprintable() and len(name) <= _MAX_NAME:
        return specs.Tier(name, _gbps(gbps, "--tier"))
    found = specs.find(known, text)
    if found is None:
        raise CommandError(
            f"--tier: expected {specs.names(known)}, or NAME=GB/s of your own (a short name), got {text[:80]!r}"
        )
    return found


def _number(text: str, flag: str, low: float, high: float, is_whole: bool = False) -> float:
    """The number in a text, from low to high. Raises CommandError."""
    try:
        value = int(text) if is_whole else float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        kind = "a whole number" if is_whole else "a number"
        raise CommandError(f"{flag}: expected {kind} from {low:g} to {high:g}, got {text[:80]!r}")
    return value


def _gbps(text: str, flag: str) -> float:
    return _number(text, flag, _LEAST_GBPS, _MAX_GBPS)


def _share(text: str, flag: str) -> float:
    return _number(text, flag, 0.001, 1)


def check_files(args: argparse.Namespace) -> None:
    """Raise for a file that could not be written, or would be written twice."""
    if args.json not in (None, STDOUT):
        files.check_writable(Path(args.json))
    if args.plot:
        plot.check_plot(args.plot)
        files.check_writable(args.plot)
        if args.json not in (None, STDOUT) and args.plot.resolve() == Path(args.json).resolve():
            raise CommandError(f"--plot: {args.plot} is the file of --json; name another file")


def show(rows: Sequence[Row], setup: Setup, tiers: Sequence[specs.Tier], context_tokens: int) -> None:
    """The table under what the model is, and in words what it says of the context."""
    context = figures.k_text(context_tokens)
    found = table.simple_table(["", "GB/s", "fetch wins from", f"fetch {context}", f"recompute {context}"])
    prefill_s = setup.prefill.seconds(context_tokens)
    num_bytes = setup.state.num_bytes(context_tokens)
    for row, tier in zip(rows, tiers, strict=True):
        fetch_s = setup.transfer(tier).seconds(num_bytes)
        crossing = "0K" if row.crossing_tokens is None else figures.k_text(row.crossing_tokens)
        found.add_row(tier.name, f"{tier.bandwidth_gbps:g}", crossing, _seconds(fetch_s), _seconds(prefill_s))
    table.show(figures.title(setup), *_facts(rows[0], setup, context), found)


def _facts(row: Row, setup: Setup, context: str) -> list[str]:
    per_token = setup.state.bytes_per_token
    least = row.min_bandwidth_gbps
    limit = setup.model.max_context_tokens
    return [
        f"  {setup.model.num_active_params / 1e9:.3g}e9 weights a token; KV {per_token / 1024:g} KiB a token, "
        f"{10_000 * per_token / GIB_BYTES:.3f} GiB per 10,000; 16 GiB hold {setup.capacity_tokens(16 * GIB_BYTES):,} "
        f"tokens, all HBM {figures.k_text(row.hbm_capacity_tokens)}",
        f"  {context} of context: "
        + (
            "no bandwidth makes up for the latency"
            if least is None
            else f"a fetch is faster from {least:.3g} GB/s on"
        )
        + ("" if limit is None else f"; the model's limit is {figures.k_text(limit)}"),
    ]


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def draw(path: Path, setup: Setup, tiers: Sequence[specs.Tier]) -> None:
    """Three panels in one file. Raises FileError."""
    figure = plot.new_figure(3)
    figure.set_size_inches(15, 5)
    lines, phases, pyramid = figure.axes
    figures.draw_tiers(lines, setup, tiers)
    figures.draw_phases(phases, setup, tiers)
    figures.draw_pyramid(pyramid, setup, tiers)
    figure.suptitle(figures.title(setup).replace("$", r"\$"))  # not a formula
    plot.save(figure, path)


def as_json(rows: Sequence[Row], setup: Setup, context_tokens: int) -> dict[str, Any]:
    """The result: a row per tier, and what they depend on beside their own keys."""
    return {
        "rows": [row.as_json() for row in rows],
        "config": {
            "context_tokens": context_tokens,
            "kv_bytes_per_element": setup.kv_bytes_per_element,
            "latency_s": setup.latency_s,
            "is_causal": setup.is_causal,
            "has_linear_state": setup.has_linear_state,
        },
        "version": __version__,
    }
