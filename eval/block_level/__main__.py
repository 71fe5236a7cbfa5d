"""Does a model's attention say which pages of KV it will want, better than recency does? (H1, H2, H4)

    python -m eval.block_level [--talks 12] [--minutes 8] [--model PATH] [--json FILE] [--smoke]

Conversations of four kinds (`eval/talks.py`), up to the model's 8,192 tokens, answers teacher-forced. A decode step asks for its top 5 % of pages;
caches of 5 to 40 % of the pages answer, at every step and at the start of every turn. Then nine contexts with 60 queries each.
A call goes on where the one before it stopped; all of it takes about an hour of two cores.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from eval import talks
from eval.block_level import answers, hotspots, observed, verdicts
from eval.block_level.page_caches import BUDGETS, POLICIES, POST_HOC, STEP_SHARE, TURN_SHARE, Hits, replayed
from eval.model_attention import ModelAttention
from eval.replay_tables.runner import progress
from eval.result_file import RESULTS, ResultFile, add_arguments, deadline_s
from eval.talks import Message, encoded
from radiximp.serving import default_model

PATH = RESULTS / "block_level" / "smollm2.json"
MAX_TOKENS = 8192
NUM_LAYERS = 4
KINDS = ("tools", "agents", "quotes", "chat")
NUM_EXCHANGES = 24


def own_exchanges(result: ResultFile, path: Path, number: int) -> list[list[str]]:
    """MT-bench's questions with the model's answers, made once."""
    for row in result.rows:
        if row["kind"] == "exchanges":
            return row["exchanges"]
    made = answers.own_answers(path, number)
    result.add({"kind": "exchanges", "exchanges": made})
    return made


def messages_of(kind: str, number: int, exchanges: list[list[str]]) -> list[Message]:
    """One conversation."""
    if kind == "tools":
        return talks.tools()[number]
    if kind == "agents":
        return talks.agents()[number]
    return talks.quotes(number) if kind == "quotes" else talks.chat(number, exchanges)


def talk_row(model: ModelAttention, kind: str, number: int, messages: list[Message], max_tokens: int) -> dict:
    """Hits of every policy on one conversation, per variant."""
    talk = encoded(model.tokenizer, messages, max_tokens)
    row = {"kind": "talk", "group": kind, "number": number, "tokens": len(talk.ids), "step": {}, "turn": {}}
    for variant, rows in observed.observe(model, talk).items():
        is_mean = variant == observed.MEAN
        by_level = zip(
            ("step", "turn"), replayed(rows, POLICIES + POST_HOC if is_mean else POLICIES), strict=True
        )
        for level, found in by_level:
            row[level][variant] = _as_json(found, by_context=is_mean)
        row["steps"] = int((~rows.is_start).sum())
    return row


def _as_json(hits: Hits, by_context: bool) -> dict:
    if by_context:
        return {"wanted": hits.wanted, "found": hits.found}
    found = {name: values.sum(0, keepdims=True) for name, values in hits.found.items()}
    return {"wanted": hits.wanted.sum(keepdims=True), "found": found}


def concluded(result: ResultFile) -> None:
    """Print and write what is known so far."""
    summary, lines = verdicts.concluded(result.rows)
    result.write(summary=summary, verdicts=lines)
    print("\n".join(lines))
    for role, (hot, share) in summary["role_lift"].items():
        print(f"hot pages in chats: {role} {hot:.0%} of them, {share:.0%} of all pages")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m eval.block_level", description=__doc__.splitlines()[0])
    parser.add_argument("--talks", type=int, default=8, help="conversations of each kind")
    parser.add_argument("--model", type=Path)
    add_arguments(parser, PATH)
    args = parser.parse_args(argv)
    until_s = deadline_s(args)
    settings = {
        "layers": NUM_LAYERS,
        "budgets": BUDGETS,
        "step_share": STEP_SHARE,
        "turn_share": TURN_SHARE,
        "max_tokens": MAX_TOKENS,
    }
    result = ResultFile(None if args.smoke else args.json, "python -m eval.block_level", settings)
    path = args.model or default_model.prepare(lambda line: print(line, file=sys.stderr))
    kinds, number, max_tokens = (("tools",), 2, 2200) if args.smoke else (KINDS, args.talks, MAX_TOKENS)
    exchanges = [] if args.smoke else own_exchanges(result, path, NUM_EXCHANGES)
    contexts = [] if args.smoke else hotspots.contexts(exchanges)
    # Kinds in turn, contexts early, so that a run cut short has some of each.
    cells = [(kind, i) for i in range(number) for kind in kinds]
    cells[2 * len(kinds) : 2 * len(kinds)] = [(context.kind, context.name) for context in contexts]
    done = {(row.get("group"), row.get("number", row.get("name"))) for row in result.rows}
    todo = [cell for cell in cells if cell not in done]
    model = ModelAttention(path, NUM_LAYERS)
    with progress("block level", len(todo)) as advance:
        for kind, name in todo:
            if time.monotonic() > until_s:
                break
            started = time.monotonic()
            context = next((c for c in contexts if (c.kind, c.name) == (kind, name)), None)
            row = (
                hotspots.measured(model, context)
                if context
                else talk_row(model, kind, name, messages_of(kind, name, exchanges), max_tokens)
            )
            result.add(row)
            advance()
            print(f"{kind} {name}: {time.monotonic() - started:.0f} s", flush=True)
    concluded(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
