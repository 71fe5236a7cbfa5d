"""Conversations as requests with what the tap observed of each prompt, and seeded orders in which they arrive.

A conversation is observed once, from one pass of the model over it; arrivals (starts, think times, one-shot prompts in between) are
modelled, and the public texts say nothing of them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from eval import talks
from eval.talks import Encoded, Message, encoded
from radiximp.importance.aggregate import DENSITY_STEP

if TYPE_CHECKING:  # torch is loaded by who observes, not by who judges
    from eval.model_attention import ModelAttention

PAGE_TOKENS = 16
MAX_TOKENS = {"tools": 4000, "agents": 4000, "quotes": 4000, "once": 800}
# Think times in seconds, log of the median and sigma: a tool answers sooner than a person.
_THINK = {"tools": (2.3, 1.0), "agents": (1.6, 1.0), "quotes": (3.4, 1.2), "once": (0.0, 0.0)}
SPREAD_S = 1800.0


@dataclass(frozen=True)
class Turn:
    """One request. end: messages of the conversation in the prompt. densities: [num_pages], NaN where nothing was observed."""

    talk: str
    page_ids: np.ndarray
    num_tokens: int
    end: int
    densities: np.ndarray
    output_tokens: int


@dataclass(frozen=True)
class Arrival:
    """A turn at a time."""

    at_s: float
    turn: Turn


def messages_of(kind: str, number: int) -> list[Message]:
    """The conversation; "once" is one question under a system message of its own."""
    if kind == "once":
        system = f"You are helper {number}. " + talks.shakespeare()[7000 * number : 7000 * number + 1500]
        asked = talks.questions()
        return [
            Message("system", system),
            Message("user", asked[number % len(asked)][1][0]),
            Message("assistant", "Yes."),
        ]
    if kind == "quotes":  # the longest of the three lengths does not fit with a question
        return talks.quotes(3 * (number // 2) + number % 2)
    return {"tools": talks.tools, "agents": talks.agents}[kind]()[number]


def prompts_of(talk: Encoded) -> list[tuple[int, int]]:
    """(tokens, messages) of the prompt of each assistant's message."""
    return [(begin, i) for i, (role, begin, _) in enumerate(talk.spans) if role == "assistant" and i]


def observed(model: ModelAttention, talk: Encoded) -> list[list[int | None]]:
    """Densities of each turn's prompt pages in the steps that the server keeps them in, None for NaN; as the default tap sees them."""
    model.read(talk.ids)
    found, cached = [], 0
    for num_tokens, _ in prompts_of(talk):
        densities = model.observe(num_tokens, cached, block_tokens=PAGE_TOKENS).block_densities().tolist()
        found.append([None if value != value else round(value / DENSITY_STEP) for value in densities])
        cached = num_tokens
    return found


def turns_of(name: str, talk: Encoded, rows: list[list[int | None]]) -> list[Turn]:
    """The conversation's requests, from what `observed` found."""
    page_ids = content_ids(talk.ids)
    found = []
    for (num_tokens, end), row in zip(prompts_of(talk), rows, strict=True):
        num_pages = num_tokens // PAGE_TOKENS
        densities = np.full(num_pages, np.nan)
        densities[: len(row)] = [np.nan if value is None else value * DENSITY_STEP for value in row][
            :num_pages
        ]
        _, begin, until = talk.spans[end]
        found.append(Turn(name, page_ids[:num_pages], num_pages * PAGE_TOKENS, end, densities, until - begin))
    return found


def content_ids(ids: list[int]) -> np.ndarray:
    """[num_pages] int64: equal exactly where two texts agree up to there."""
    digest, found = blake2b(digest_size=8), []
    for begin in range(0, len(ids) - PAGE_TOKENS + 1, PAGE_TOKENS):
        digest.update(np.array(ids[begin : begin + PAGE_TOKENS], np.int32).tobytes())
        found.append(int.from_bytes(digest.copy().digest(), "little") >> 1)
    return np.array(found, np.int64)


def arrivals(conversations: dict[str, list[Turn]], seed: int) -> list[Arrival]:
    """All turns in order; starts over half an hour, lognormal think times by kind."""
    rng, found = random.Random(f"arrivals {seed}"), []
    for name, turns in sorted(conversations.items()):
        at_s, (mean, sigma) = rng.uniform(0, SPREAD_S), _THINK[name.split()[0]]
        for turn in turns:
            found.append(Arrival(at_s, turn))
            at_s += 1.0 + 0.05 * turn.output_tokens + rng.lognormvariate(mean, sigma)
    return sorted(found, key=lambda arrival: (arrival.at_s, arrival.turn.talk))


def encode(tokenizer, kind: str, number: int) -> Encoded:
    """Cut at what the kind allows."""
    return encoded(tokenizer, messages_of(kind, number), MAX_TOKENS[kind])
