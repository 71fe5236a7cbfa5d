"""What observed attention marks: an instruction that binds the answer, sentences as odd that bind nothing, or plain filler?

    python -m eval.importance_signal [--questions 50] [--orders 4] [--model PATH] [--json FILE]

Each prompt has a system message of ten sentences in a shuffled order: one instruction, one placebo that is as odd in words
but asks for nothing, eight plain ones; then a question, bare or after a two-turn chat. Every sentence gets the
mean density of its tokens, and its rank among the ten (1 = lowest, 10 = highest), with secondary sinks in or out and layers
normalised or not. Intervals are bootstraps over questions; that of the difference between instruction and placebo also over
the pairs of sentences, of which there are few. Questions are MT-bench's: needs `../shared/traces`, or the
folder that RADIXIMP_TRACES names.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
from pathlib import Path

import numpy as np
import torch

from eval import public_traces
from eval.bootstrap import interval
from eval.model_attention import ModelAttention
from radiximp.replay.files import write_json
from radiximp.serving import default_model

FILE = "mt_bench_question.jsonl.gz"
# Pairs of like length and like words: the first binds the answer, the second says as odd a thing and binds nothing.
PAIRS = [
    ("Always answer in exactly three words.", "The lamp swallowed exactly three clocks."),
    ("End every answer with the word banana.", "The ladder married a word called banana."),
    ("Write the whole answer in capital letters.", "The whole garden sneezed in capital letters."),
    ("Answer only in French, never in English.", "The kettle spoke French to a sleeping stone."),
    ("Never use the letter e in your answer.", "The letter e never paid for its own boat."),
    ("Begin each answer with a row of stars.", "A row of stars began each of the spoons."),
    ("Reply as a pirate would, with many curses.", "A pirate cursed the marmalade many Tuesdays."),
    ("Put every noun of the answer in brackets.", "Every noun kept its umbrella in brackets."),
    ("Finish with a question about cheese.", "The question of cheese finished the violin."),
    ("Sort the words of the answer by length.", "The words of the carpet slept by length."),
    ("Mention the moon twice in every reply.", "The moon mentioned its sister to a fork."),
    ("Do not use any numbers or digits.", "No digits ever visited the numb potato."),
    ("Speak of yourself as an old robot.", "An old robot was spoken of by the soup."),
    ("Rhyme the last two lines of the answer.", "The last two lines rhymed with a trouser."),
    ("Use only words of one syllable.", "One syllable of thunder used the ladle."),
    ("Repeat the question before you answer it.", "The question repeated itself to the gravel."),
]
FILLERS = [
    "The office is open from Monday to Friday.",
    "The building has a car park behind it.",
    "Lunch is served in the hall at noon.",
    "The company was founded some years ago.",
    "Visitors can find the desk on the left.",
    "The meeting rooms are on the second floor.",
    "The train station is not far from here.",
    "Most people come to work by bus.",
    "The windows look out on a small park.",
    "The printer is next to the kitchen.",
    "Coffee and tea are free for everyone.",
    "The report is written once a month.",
]
NUM_FILLERS = 8
CHAT = [("user", "Hello, are you there?"), ("assistant", "Yes, I am here. How can I help?"),
        ("user", "I will ask you something in a moment."), ("assistant", "Of course, take your time.")]  # fmt: skip
KINDS = ("instruction", "placebo", "filler")
VARIANTS = {
    "raw": {"exclude_sinks": False, "normalise_layers": False},
    "layers normalised": {"exclude_sinks": False, "normalise_layers": True},
    "sinks excluded": {"exclude_sinks": True, "normalise_layers": False},
    "both (the tap)": {"exclude_sinks": True, "normalise_layers": True},
}


def prompt(tokenizer, sentences: list[str], chat, question: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Token ids, and the span of each sentence."""
    ids = tokenizer.encode("<|im_start|>system\n")
    spans = []
    for sentence in sentences:
        piece = tokenizer.encode(sentence + " ")
        spans.append((len(ids), len(ids) + len(piece)))
        ids += piece
    for role, text in (*chat, ("user", question)):
        ids += tokenizer.encode(f"<|im_end|>\n<|im_start|>{role}\n{text}")
    return ids + tokenizer.encode("<|im_end|>\n<|im_start|>assistant\n"), spans


def ranks(values: np.ndarray) -> np.ndarray:
    """1 = lowest."""
    return values.argsort().argsort() + 1.0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=int, default=50)
    parser.add_argument("--orders", type=int, default=4)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    path = public_traces.find(FILE)
    questions = [json.loads(line)["turns"][0][:600] for line in gzip.open(path)][: args.questions]
    model = ModelAttention(args.model or default_model.prepare(lambda line: None))
    found = {
        (variant, context, kind): [] for variant in VARIANTS for context in ("bare", "chat") for kind in KINDS
    }
    differences: dict[tuple, list[float]] = {}
    for number, question in enumerate(questions):
        for context, chat in (("bare", ()), ("chat", CHAT)):
            by_kind = {(variant, kind): [] for variant in VARIANTS for kind in KINDS}
            for order in range(args.orders):
                rng = random.Random(number * 1000 + order)
                pair = PAIRS[(number + order) % len(PAIRS)]
                sentences = [*zip(KINDS, pair, strict=False)] + [
                    ("filler", s) for s in rng.sample(FILLERS, NUM_FILLERS)
                ]
                rng.shuffle(sentences)
                ids, spans = prompt(model.tokenizer, [text for _, text in sentences], chat, question)
                model.read(ids)
                tokens = model.observe(len(ids), 0, block_tokens=1)
                for variant, settings in VARIANTS.items():
                    densities = tokens.block_densities(**settings)
                    values = np.array([float(torch.nanmean(densities[a:b])) for a, b in spans])
                    ranked = ranks(values)
                    for (kind, _), rank in zip(sentences, ranked, strict=True):
                        by_kind[variant, kind].append(rank)
                    at = [[kind for kind, _ in sentences].index(kind) for kind in KINDS[:2]]
                    key = (variant, context, PAIRS.index(pair))
                    differences.setdefault(key, []).append(ranked[at[0]] - ranked[at[1]])
            for (variant, kind), values in by_kind.items():
                found[variant, context, kind].append(np.mean(values))
        print(f"\r{number + 1} of {len(questions)} questions", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    rows = []
    for variant in VARIANTS:
        for context in ("bare", "chat"):
            by_kind = {kind: np.array(found[variant, context, kind]) for kind in KINDS}
            row = {
                "variant": variant,
                "context": context,
                **{kind: interval(by_kind[kind]) for kind in KINDS},
            }
            row["instruction_minus_placebo"] = interval(by_kind["instruction"] - by_kind["placebo"])
            of_pairs = [
                np.mean(differences[variant, context, i])
                for i in range(len(PAIRS))
                if (variant, context, i) in differences
            ]
            row["over_pairs"] = interval(np.array(of_pairs))
            row["pairs_where_instruction_is_higher"] = [sum(float(d) > 0 for d in of_pairs), len(of_pairs)]
            rows.append(row)
            print(f"{variant:<18} {context:<5} " + "  ".join(
                f"{kind} {row[kind][0]:.2f} ({row[kind][1]:.2f} .. {row[kind][2]:.2f})"
                for kind in (*KINDS, "instruction_minus_placebo", "over_pairs")),
                "higher in {} of {} pairs".format(*row["pairs_where_instruction_is_higher"]))  # fmt: skip
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        write_json(args.json, {"questions": len(questions), "orders": args.orders, "sentences": 2 + NUM_FILLERS,
                               "layers": model.layers, "rows": rows})  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
