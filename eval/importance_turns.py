"""Does what a conversation attended to so far say what its next turn will attend to? Stability, too, and the settings.

    python -m eval.importance_turns [--conversations 40] [--model PATH] [--json FILE]

Agents' conversations (tau-bench): each assistant turn is a request whose last queries are observed; each earlier message
is a node. A predictor ranks the messages before a turn; Spearman's correlation with the density that the turn then gives
them is its score (mean over turns, 95 % bootstrap over conversations). Predictors: the aggregate of densities so far by
half-life and by membership in the top share, and for comparison recency, role, length and SLRU's two segments. Half of the
conversations choose settings (dev), the other half is what they are reported on (test). Stability is the correlation of the
aggregate with itself one turn before. Needs `../shared/traces`, or the folder that RADIXIMP_TRACES names.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.stats import rankdata, spearmanr

from eval import public_traces
from eval.bootstrap import interval
from eval.model_attention import ModelAttention
from radiximp.importance.aggregate import ImportanceAggregate
from radiximp.importance.density import TokenMass
from radiximp.replay.files import write_json
from radiximp.serving import default_model

FILE = "tau_bench_airline_dev.json.gz"
MAX_TOKENS = 4000
BLOCK_TOKENS = 16
MIN_MESSAGES = 6
HALF_LIVES = (0.5, 1, 2, 4, 8, 16, 32)
TOP_SHARES = (0.1, 0.2, 0.4)
WINDOWS = (4, 8, 32)
# What a tap may watch: layers out of 30, last queries, stride, heads, scorer. The first is the most that is ever read.
FULL = {"layers": 8, "num_queries": 32, "stride": 1, "heads": "mean", "scorer": "softmax"}
TAPS = {
    "full (8 layers, 32 queries)": FULL,
    "default (4 layers, every 4th of 32)": FULL | {"layers": 4, "stride": 4},
    "2 layers": FULL | {"layers": 2, "stride": 4},
    "1 layer": FULL | {"layers": 1, "stride": 4},
    "last 8 queries": FULL | {"layers": 4, "stride": 1, "num_queries": 8},
    "last 128 queries": FULL | {"layers": 4, "stride": 4, "num_queries": 128},
    "heads by max": FULL | {"layers": 4, "stride": 4, "heads": "max"},
    "quest": FULL | {"layers": 4, "stride": 4, "scorer": "quest"},
    "blast": FULL | {"layers": 4, "stride": 4, "scorer": "blast"},
}
SETTINGS = {
    "sinks excluded, layers normalised": {},
    "sinks included": {"exclude_sinks": False},
    "layers not normalised": {"normalise_layers": False},
    "neither": {"exclude_sinks": False, "normalise_layers": False},
}


@dataclass
class Talk:
    """One conversation's observations. densities[name][turn]: [messages before the turn], NaN beyond what is observed."""

    roles: list[str]
    lengths: list[int]
    turns: list[int]  # messages before each turn
    densities: dict[str, list[np.ndarray]] = field(default_factory=dict)


def messages(tokenizer, row: dict) -> tuple[list[str], list[list[int]]]:
    """Roles and token ids of a conversation's messages, up to MAX_TOKENS."""
    roles, pieces, total = [], [], 0
    for message in row["traj"]:
        text = message.get("content") or json.dumps(message.get("tool_calls"))
        ids = tokenizer.encode(f"<|im_start|>{message['role']}\n{text}<|im_end|>\n")
        if total + len(ids) > MAX_TOKENS:
            break
        roles.append(message["role"])
        pieces.append(ids)
        total += len(ids)
    return roles, pieces


def by_message(tokens: TokenMass, ends: np.ndarray, **settings) -> np.ndarray:
    """[messages] mean density of each message's blocks, as a tree node takes it."""
    blocks = np.repeat(tokens.block_densities(**settings).numpy(), BLOCK_TOKENS)
    found = np.full(len(ends), np.nan)
    for i, end in enumerate(ends):
        begin = ends[i - 1] if i else 0
        inside = blocks[begin:end]
        if len(inside) and end <= len(blocks) + BLOCK_TOKENS and not np.isnan(inside).all():
            found[i] = np.nanmean(inside)
    return found


def observe(model: ModelAttention, row: dict) -> Talk | None:
    """All turns of a conversation from one pass over it; None if it is too short."""
    roles, pieces = messages(model.tokenizer, row)
    turns = [i for i, role in enumerate(roles) if role == "assistant" and i >= MIN_MESSAGES]
    if len(turns) < 3:
        return None
    ends = np.cumsum([len(piece) for piece in pieces])
    model.read([token for piece in pieces for token in piece])
    talk = Talk(roles, [len(piece) for piece in pieces], turns)
    for turn in turns:
        # The turn before ended with the answer: what is new is what came after it.
        cached = next((int(ends[i]) for i in range(turn - 1, -1, -1) if roles[i] == "assistant"), 0)
        for name, tap in TAPS.items():
            layers = model.spread(tap["layers"])
            tokens = model.observe(
                int(ends[turn - 1]), cached, num_queries=tap["num_queries"], stride=tap["stride"],
                block_tokens=BLOCK_TOKENS, scorer=tap["scorer"], layers=layers, heads=tap["heads"],
            )  # fmt: skip
            talk.densities.setdefault(name, []).append(by_message(tokens, ends[:turn]))
            if name.startswith("default"):
                for setting, arguments in SETTINGS.items():
                    talk.densities.setdefault(setting, []).append(
                        by_message(tokens, ends[:turn], **arguments)
                    )
    return talk


def aggregated(talk: Talk, name: str, half_life: float, top_share: float = 0.1, window: int = 32):
    """Before each turn but the first: (EMA densities, share of the window in the top) of the messages seen so far."""
    nodes: list[ImportanceAggregate] = [ImportanceAggregate() for _ in talk.roles]
    found = []
    for turn, densities in enumerate(talk.densities[name]):
        if turn:
            found.append(
                (
                    np.array([node.density if node.num_observations else np.nan for node in nodes]),
                    np.array(
                        [
                            np.nan if node.top_share(window) is None else node.top_share(window)
                            for node in nodes
                        ]
                    ),
                )
            )
        known = [i for i, density in enumerate(densities) if not np.isnan(density)]
        top = set(sorted(known, key=lambda i: -densities[i])[: max(1, int(np.ceil(top_share * len(known))))])
        for i in known:
            nodes[i].observe(float(densities[i]), talk.lengths[i], i in top, half_life, window)
    return found


def correlation(predicted: np.ndarray, wanted: np.ndarray) -> float:
    """Spearman over the messages that both know; NaN where there are fewer than four or all are alike."""
    number = min(len(predicted), len(wanted))
    both = ~np.isnan(predicted[:number]) & ~np.isnan(wanted[:number])
    a, b = predicted[:number][both], wanted[:number][both]
    if len(a) < 4 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(spearmanr(a, b).statistic)


def score(talks: list[Talk], predict, target: str = next(iter(TAPS))) -> list[float]:
    """[mean, low, high]: predict(talk, turn) -> values of the messages, against the turn's own densities."""
    means = []
    for talk in talks:
        values = [
            correlation(predict(talk, turn), talk.densities[target][turn])
            for turn in range(1, len(talk.turns))
        ]
        if not np.isnan(values).all():
            means.append(np.nanmean(values))
    return interval(np.array(means))


def ema(name: str, half_life: float):
    """The aggregate before a turn."""
    return lambda talk, turn: aggregated(talk, name, half_life)[turn - 1][0]


def added(values: np.ndarray) -> np.ndarray:
    """The rank of a value plus that of its place, NaN where there is no value."""
    known = ~np.isnan(values)
    ranks = np.full(len(values), np.nan)
    ranks[known] = rankdata(values[known]) + np.arange(known.sum())
    return ranks


def slru(talk: Talk, turn: int) -> np.ndarray:
    """Protected once used twice, then by recency: all messages but the newest turn's were used again."""
    known = talk.turns[turn]
    return np.array([i + (known if i < talk.turns[turn - 1] else 0) for i in range(known)], dtype=float)


def role(talks: list[Talk]):
    """The mean density of a message's role in `talks`."""
    values: dict[str, list[float]] = {}
    for talk in talks:
        for densities in talk.densities[next(iter(TAPS))]:
            for name, density in zip(talk.roles, densities, strict=False):
                values.setdefault(name, []).append(density)
    means = {name: float(np.nanmean(found)) for name, found in values.items()}
    return lambda talk, turn: np.array([means.get(name, np.nan) for name in talk.roles])


def stability(talks: list[Talk], half_life: float) -> list[float]:
    """Correlation of the aggregate before a turn with that before the next."""
    means = []
    for talk in talks:
        series = [values for values, _ in aggregated(talk, "default (4 layers, every 4th of 32)", half_life)]
        found = [correlation(a, b) for a, b in zip(series, series[1:], strict=False)]
        if found and not np.isnan(found).all():
            means.append(np.nanmean(found))
    return interval(np.array(means))


def report(dev: list[Talk], test: list[Talk]) -> dict:
    """Every predictor on both splits; rows in the order they are explained above."""
    tap = "default (4 layers, every 4th of 32)"
    predictors = {
        "recency": lambda talk, turn: np.arange(len(talk.roles), dtype=float),
        "role": role(dev),
        "length": lambda talk, turn: np.array(talk.lengths, dtype=float),
        "slru": slru,
        **{f"EMA, half-life {h:g}": ema(tap, h) for h in HALF_LIVES},
        "recency and EMA, half-life 1 (ranks added)": lambda talk, turn: added(ema(tap, 1)(talk, turn)),
    }
    for share in TOP_SHARES:
        for window in WINDOWS:
            predictors[f"top {share:.0%} in last {window}"] = lambda talk, turn, share=share, window=window: (
                aggregated(talk, tap, 8, share, window)[turn - 1][1]
            )
    rows = [
        {"kind": "predictor", "name": name, "dev": score(dev, predict), "test": score(test, predict)}
        for name, predict in predictors.items()
    ]
    for kind, names in (("tap", TAPS), ("setting", SETTINGS)):
        rows += [
            {"kind": kind, "name": name, "dev": score(dev, ema(name, 8)), "test": score(test, ema(name, 8))}
            for name in names
        ]
    rows += [
        {
            "kind": "stability",
            "name": f"EMA, half-life {h:g}",
            "dev": stability(dev, h),
            "test": stability(test, h),
        }
        for h in HALF_LIVES
    ]
    return {
        "rows": rows,
        "dev": len(dev),
        "test": len(test),
        "turns": sum(len(talk.turns) for talk in dev + test),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--conversations", type=int, default=40)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    path = public_traces.find(FILE)
    rows = json.loads(gzip.open(path).read())
    rows.sort(key=lambda row: (-len(row["traj"]), row["task_id"], row["trial"]))
    model = ModelAttention(args.model or default_model.prepare(lambda line: None), keep_all=True)
    talks: list[Talk] = []
    for number, row in enumerate(rows[: args.conversations]):
        talk = observe(model, row)
        if talk is not None:
            talks.append(talk)
        print(f"\r{number + 1} of {args.conversations} conversations", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    result = report(talks[::2], talks[1::2])
    print(
        f"{len(talks)} conversations, {result['turns']} turns; Spearman on dev and test, with 95 % intervals"
    )
    for row in result["rows"]:
        texts = [f"{m:6.3f} ({low:.3f} .. {high:.3f})" for m, low, high in (row["dev"], row["test"])]
        print(f"{row['kind']:<10} {row['name']:<36} {'   '.join(texts)}")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        write_json(args.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
