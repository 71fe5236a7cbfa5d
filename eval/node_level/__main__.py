"""Does a node's importance predict that it is used again, beyond recency, frequency, role and depth?

    python -m eval.node_level [--minutes 8] [--model PATH] [--json FILE] [--smoke]

Agents with tools, coding agents, questions about documents, one-shot prompts: 131 conversations observed by the model as the default tap would,
arriving in seeded orders. Information: bits on conversations that the estimate has not seen. Hits: the production policy in the replay's tree with
importance true, zero and shuffled, beside lru, slru and lfu, five orders, five sizes. A call goes on where the one before it stopped;
observing takes about ten minutes of two cores, the rest about two.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eval.bootstrap import interval, shown
from eval.node_level import information, replay, traffic
from eval.node_level.traffic import Turn
from eval.replay_tables.runner import progress
from eval.result_file import RESULTS, ResultFile, add_arguments, deadline_s
from eval.talks import Encoded
from radiximp.serving import default_model

PATH = RESULTS / "node_level" / "smollm2.json"
NUMBERS = {"tools": 40, "agents": 19, "quotes": 12, "once": 60}
SMOKE_NUMBERS = {"tools": 4, "once": 6}
BUDGETS = (0.02, 0.05, 0.1, 0.2, 0.4)
SEEDS = range(5)


def observed_rows(result: ResultFile, path: Path, wanted: list[tuple[str, int]], until_s: float) -> bool:
    """Observe what the file lacks; False if the time was up before."""
    done = {(row["group"], row["number"]) for row in result.rows if row["kind"] == "observed"}
    todo = [one for one in wanted if one not in done]
    if not todo:
        return True
    from eval.model_attention import ModelAttention

    model = ModelAttention(path)
    with progress("observing conversations", len(todo)) as advance:
        for kind, number in todo:
            if time.monotonic() > until_s:
                return False
            talk = traffic.encode(model.tokenizer, kind, number)
            densities = traffic.observed(model, talk)
            result.add(
                {
                    "kind": "observed",
                    "group": kind,
                    "number": number,
                    "tokens": len(talk.ids),
                    "densities": densities,
                }
            )
            advance()
    return True


def conversations_of(result: ResultFile, path: Path) -> tuple[dict[str, list[Turn]], dict[str, Encoded]]:
    """Turns by conversation, and the texts that they are of."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(path))
    turns, texts = {}, {}
    for row in result.rows:
        if row["kind"] == "observed":
            name = f"{row['group']} {row['number']}"
            texts[name] = traffic.encode(tokenizer, row["group"], row["number"])
            turns[name] = traffic.turns_of(name, texts[name], row["densities"])
    return turns, texts


def hit_rows(
    turns: dict[str, list[Turn]], seeds: Sequence[int], budgets: Sequence[float]
) -> list[dict[str, Any]]:
    """A row per order, size and policy."""
    distinct = len({page for own in turns.values() for turn in own for page in turn.page_ids.tolist()})
    cells = [(seed, budget, policy) for seed in seeds for budget in budgets for policy in replay.POLICIES]
    rows = []
    with progress("replaying", len(cells)) as advance:
        for seed, budget, policy in cells:
            found = replay.replayed(traffic.arrivals(turns, seed), policy, int(budget * distinct))
            rows.append({"kind": "hits", "seed": seed, "budget": budget, "policy": policy, **found})
            advance()
    return rows


def information_rows(
    turns: dict[str, list[Turn]], texts: dict[str, Encoded], seed: int
) -> list[dict[str, Any]]:
    """Bits added for each horizon, true and shuffled. Shared nodes are in neither split's conversations: they count for the dev split."""
    roles = {name: text.spans for name, text in texts.items()}
    questions = information.questions_of(traffic.arrivals(turns, seed), roles, seed)
    numbers = {name: i for i, name in enumerate(sorted(turns))}
    is_dev = np.array([name == "" or numbers[name] % 2 == 0 for name in questions.talk.tolist()])
    rows = []
    for horizon_s in information.HORIZONS_S:
        for control in (None, 0):
            found = information.gain(questions, horizon_s, is_dev, control)
            rows.append(
                {
                    "kind": "information",
                    "seed": seed,
                    "density": "true" if control is None else "shuffled",
                    **found,
                }
            )
    return rows


def difference(rows: Sequence[dict], budget: float, base: str) -> list[float]:
    """Points of hit rate of true importance over another policy, mean over orders with their interval."""
    rate = {
        (r["seed"], r["policy"]): r["hit_tokens"] / r["prompt_tokens"]
        for r in rows
        if r["kind"] == "hits" and r["budget"] == budget
    }
    return interval(
        np.array(
            [100 * (rate[seed, "importance"] - rate[seed, base]) for seed, policy in rate if policy == base]
        )
    )


def concluded(rows: Sequence[dict]) -> tuple[dict[str, Any], list[str]]:
    """(summary, verdict lines)."""
    lines, summary = [], {"information": [], "hits": []}
    for horizon_s in information.HORIZONS_S:
        of = [r for r in rows if r["kind"] == "information" and r["horizon_s"] == horizon_s]
        true = [r for r in of if r["density"] == "true"]
        # Orders are of the same conversations, so the widest interval of any stands for all.
        mean = [
            float(np.mean([r["bits_added"][0] for r in true])),
            min(r["bits_added"][1] for r in true),
            max(r["bits_added"][2] for r in true),
        ]
        control = float(np.mean([r["bits_added"][0] for r in of if r["density"] == "shuffled"]))
        before = float(np.mean([r["bits_before"][0] for r in true]))
        word = "supported" if mean[1] > 0 else ("not supported" if mean[2] <= 0 else "not shown")
        summary["information"].append(
            {"horizon_s": horizon_s, "bits_added": mean, "shuffled": control, "bits_before": before}
        )
        lines.append(
            f"Node level, reuse within {horizon_s:g} s: density adds {shown(mean, 4)} bits a question to the {before:.3f} that recency, frequency, role "
            f"and depth tell (shuffled {control:.4f}): {word}"
        )
    for budget in dict.fromkeys(r["budget"] for r in rows if r["kind"] == "hits"):
        against = {base: difference(rows, budget, base) for base in replay.POLICIES if base != "importance"}
        summary["hits"].append({"budget": budget, "points_over": against})
    helps = [
        h["budget"]
        for h in summary["hits"]
        if all(h["points_over"][c][1] > 0 for c in ("importance-zero", "importance-shuffled"))
    ]
    hurts = [h["budget"] for h in summary["hits"] if h["points_over"]["importance-zero"][2] < 0]
    each = "; ".join(
        f"{h['budget']:.0%}: {shown(h['points_over']['importance-zero'])} over zero, {shown(h['points_over']['importance-shuffled'])} over shuffled"
        for h in summary["hits"]
    )
    word = (
        "supported"
        if len(helps) == len(summary["hits"])
        else ("not supported" if not helps else "at some sizes only")
    )
    hurt = f"; below zero weight at {', '.join(f'{b:.0%}' for b in hurts)}" if hurts else ""
    lines.append(
        f"Node level, hit rate of true importance in points by size of the cache: {each}: {word}{hurt}"
    )
    return summary, lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m eval.node_level", description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path)
    add_arguments(parser, PATH)
    args = parser.parse_args(argv)
    until_s = deadline_s(args)
    numbers = SMOKE_NUMBERS if args.smoke else NUMBERS
    settings = {"numbers": numbers, "max_tokens": traffic.MAX_TOKENS, "page_tokens": traffic.PAGE_TOKENS}
    result = ResultFile(None if args.smoke else args.json, "python -m eval.node_level", settings)
    path = args.model or default_model.prepare(lambda line: print(line, file=sys.stderr))
    # Kinds in turn, so that a run cut short has some of each.
    wanted = sorted(
        ((kind, i) for kind, number in numbers.items() for i in range(number)),
        key=lambda one: one[1] / numbers[one[0]],
    )
    if not observed_rows(result, path, wanted, until_s):
        print("not all conversations are observed yet: call it again", file=sys.stderr)
        return 0
    turns, texts = conversations_of(result, path)
    result.document["rows"] = [row for row in result.rows if row["kind"] == "observed"]
    seeds = SEEDS[:1] if args.smoke else SEEDS
    made = hit_rows(turns, seeds, BUDGETS[2:4] if args.smoke else BUDGETS)
    made += [row for seed in seeds for row in information_rows(turns, texts, seed)]
    summary, lines = concluded(made)
    result.rows.extend(made)
    result.write(summary=summary, verdicts=lines)
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
