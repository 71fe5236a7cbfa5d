"""H2: do queries about one context want the same pages, and what text is on the pages that they want together?

Each context is read once with all its queries as branches of it. A query's top tenth is compared with that of the sum of all
*other* queries' densities, so that a query is never compared with itself.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from eval import talks
from eval.block_level.observed import MEAN, PAGE_TOKENS
from eval.block_level.page_caches import num_wanted, top
from eval.talks import Encoded, Message, encoded

if TYPE_CHECKING:  # torch is loaded by who observes, not by who judges
    from eval.model_attention import ModelAttention

TOP_SHARE = 0.1
NUM_QUERIES = 60
MAX_CONTEXT_TOKENS = 1400


@dataclass(frozen=True)
class Context:
    """kind: "structured" (system prompts with rules), "document" or "free-form"."""

    name: str
    kind: str
    messages: tuple[Message, ...]
    queries: tuple[str, ...]


def contexts(exchanges: list[list[str]]) -> list[Context]:
    """Nine of them, three a kind; exchanges: of chats."""
    asked = [turns[0] for _, turns in talks.questions()]
    creative = [
        turns[0]
        for category, turns in talks.questions()
        if category in ("writing", "roleplay", "humanities", "stem", "reasoning", "extraction")
    ]
    users = list(dict.fromkeys(next(m.text for m in talk if m.role == "user") for talk in talks.tools()))
    users += [m.text for talk in talks.tools() for m in talk[3:8] if m.role == "user"]
    rng, found = random.Random(0), []
    policy = talks.tools()[0][0]
    found.append(
        Context("airline policy", "structured", (policy,), tuple(dict.fromkeys(users))[:NUM_QUERIES])
    )
    found.append(
        Context("coding agent's rules", "structured", (talks.agents()[0][0],), tuple(asked[:NUM_QUERIES]))
    )
    rules = Message("system", _rules())
    found.append(Context("assistant's rules", "structured", (rules,), tuple(rng.sample(asked, NUM_QUERIES))))
    for number in range(3):
        document = talks.quotes(3 * number)
        queries = [m.text for seed in range(10) for m in _questions(3 * number, seed)]
        found.append(Context(f"document {number}", "document", (document[0],), tuple(queries[:NUM_QUERIES])))
    for number in range(3):
        chat = talks.chat(100 + number, exchanges)
        found.append(
            Context(
                f"chat {number}",
                "free-form",
                tuple(chat),
                tuple(rng.sample(creative, min(NUM_QUERIES, len(creative)))),
            )
        )
    return found


def _rules() -> str:
    """Instructions that bind the answer, each followed by its reason as plain text."""
    from eval.importance_signal import FILLERS, PAIRS

    lines = [f"{i + 1}. {rule} {FILLERS[i % len(FILLERS)]}" for i, (rule, _) in enumerate(PAIRS)]
    return "You are an assistant. Follow these rules.\n" + "\n".join(lines) + "\nNever break a rule."


def _questions(number: int, seed: int) -> list[Message]:
    """Questions about the same document as `talks.quotes(number)`, other passages of it."""
    text = talks.quotes(number)[0].text
    words = text.split(" ")
    rng = random.Random(f"{number} {seed}")
    starts = [rng.randrange(10, len(words) - 50) for _ in range(6)]
    return [
        Message("user", f'How does the document go on after "{" ".join(words[at : at + 8])}"?')
        for at in starts
    ]


def measured(model: ModelAttention, context: Context) -> dict:
    """One result row: Jaccard of every query with the aggregate of the others, per layer and averaged; roles of the hot pages."""
    body = encoded(model.tokenizer, context.messages, MAX_CONTEXT_TOKENS)
    num_pages = len(body.ids) // PAGE_TOKENS
    prefix = body.ids[: num_pages * PAGE_TOKENS]
    branches = [
        model.tokenizer.encode(f"<|im_start|>user\n{query}<|im_end|>\n<|im_start|>assistant\n")[-200:]
        for query in context.queries
    ]
    densities: dict[str, list[np.ndarray]] = {}
    for number in model.read_branches(prefix, branches):
        num_tokens = len(prefix) + len(branches[number])
        for variant, layers in (MEAN, model.layers), *((f"layer {layer}", [layer]) for layer in model.layers):
            tokens = model.observe(num_tokens, len(prefix), block_tokens=PAGE_TOKENS, layers=layers)
            densities.setdefault(variant, []).append(tokens.block_densities().numpy()[:num_pages])
    overlap = {variant: jaccards(np.stack(values)) for variant, values in densities.items()}
    hot = top(np.nan_to_num(np.stack(densities[MEAN])).sum(0), num_wanted(num_pages, TOP_SHARE))
    return {
        "kind": "hotspots", "name": context.name, "group": context.kind, "queries": len(branches), "pages": num_pages,
        "jaccard": {variant: np.round(values, 4) for variant, values in overlap.items()},
        "by_chance": chance(num_pages), "roles": role_lift(body, hot, num_pages),
        "hot_text": [model.tokenizer.decode(prefix[p * PAGE_TOKENS : (p + 1) * PAGE_TOKENS]) for p in sorted(hot.tolist())[:8]],
    }  # fmt: skip


def jaccards(densities: np.ndarray) -> np.ndarray:
    """[num_queries] overlap of each query's top tenth of [num_queries, pages] with that of all others' sum."""
    values = np.nan_to_num(densities)
    number, total, found = num_wanted(values.shape[1], TOP_SHARE), values.sum(0), []
    for row in values:
        own, others = set(top(row, number).tolist()), set(top(total - row, number).tolist())
        found.append(len(own & others) / len(own | others))
    return np.array(found)


def chance(num_pages: int) -> float:
    """Jaccard of two random choices, about."""
    number = num_wanted(num_pages, TOP_SHARE)
    both = number * number / num_pages
    return both / (2 * number - both)


def role_lift(body: Encoded, hot: np.ndarray, num_pages: int) -> dict[str, list[float]]:
    """Per role (share of the hot pages, share of all pages)."""
    roles = [body.role_of(page * PAGE_TOKENS) for page in range(num_pages)]
    all_pages, hot_pages = Counter(roles), Counter(roles[page] for page in hot)
    return {
        role: [hot_pages[role] / len(hot), count / num_pages] for role, count in sorted(all_pages.items())
    }
