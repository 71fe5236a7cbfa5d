"""Sessions of text as a cluster sees them, seeded: agents that share a system message, tenants, questions on documents, one-shots. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

from eval import talks
from eval.talks import Message, encoded

MAX_PROMPT_TOKENS = 2400
_PAGE_TOKENS = 16
# Seconds of thinking before a turn: log of the median, sigma. A tool answers sooner than a person.
_THINK = {"agent": (0.0, 1.0), "tenant": (0.0, 1.0), "document": (0.7, 1.0), "once": (0.0, 0.5)}


@dataclass(frozen=True)
class Session:
    """One conversation. prompts: token ids of each turn. think_s: before each turn. salt: of its tenant, None for nobody's."""

    number: int
    kind: str
    prompts: tuple[list[int], ...]
    think_s: tuple[float, ...]
    salt: str | None = None


@dataclass(frozen=True)
class Mix:
    """How many sessions of each kind, and turns of an agent."""

    agents: int = 12
    tenants: int = 6
    documents: int = 4
    readers: int = 2
    once: int = 12
    turns: int = 4


SMOKE = Mix(agents=2, tenants=0, documents=1, readers=1, once=1, turns=2)


def sessions(tokenizer, seed: int, mix: Mix) -> list[Session]:
    """All of them in the order in which they begin."""
    rng = random.Random(f"sessions {seed}")
    found: list[tuple[str, list[list[int]], str | None]] = []
    numbers = rng.sample(range(len(talks.tools())), mix.agents + mix.tenants)
    for i, number in enumerate(numbers):
        is_tenant = i >= mix.agents
        salt = f"tenant-{i % 2}" if is_tenant else None
        turns = _turns(tokenizer, talks.tools()[number], mix.turns)
        found.append(("tenant" if is_tenant else "agent", turns, salt))
    for document in range(mix.documents):
        # The shortest of the three lengths.
        talk = talks.quotes(3 * (mix.documents * seed + document), 2 * mix.readers)
        for reader in range(mix.readers):
            own = [talk[0], *talk[1 + 4 * reader : 5 + 4 * reader]]
            found.append(("document", _turns(tokenizer, own, 2), None))
    for _ in range(mix.once):
        at = rng.randrange(len(talks.shakespeare()) - 3000)
        text = talks.shakespeare()[at : at + rng.randint(1000, 3000)]
        talk = [Message("system", text), Message("user", "What is this about?"), Message("assistant", "")]
        found.append(("once", _turns(tokenizer, talk, 1), None))
    rng.shuffle(found)
    return [
        Session(i, kind, tuple(prompts), tuple(rng.lognormvariate(*_THINK[kind]) for _ in prompts), salt)
        for i, (kind, prompts, salt) in enumerate(found)
        if prompts
    ]


def _turns(tokenizer, talk: list[Message], number: int) -> list[list[int]]:
    prompts = []
    for i, message in enumerate(talk):
        if message.role == "assistant" and len(prompts) < number:
            before = encoded(tokenizer, talk[:i], MAX_PROMPT_TOKENS)
            if len(before.spans) == i:
                prompts.append(before.ids + tokenizer.encode("<|im_start|>assistant\n"))
    return prompts


def working_set_tokens(found: list[Session]) -> int:
    """Distinct tokens of the prefix trees of all tenants."""
    return _PAGE_TOKENS * len(
        {key for s in found for prompt in s.prompts for key in page_keys(prompt, s.salt)}
    )


def page_keys(prompt: list[int], salt: str | None) -> list[int]:
    """One a page: equal where prompts of a tenant agree up to there."""
    keys, key = [], hash(salt)
    for begin in range(0, len(prompt) - _PAGE_TOKENS + 1, _PAGE_TOKENS):
        key = hash((key, *prompt[begin : begin + _PAGE_TOKENS]))
        keys.append(key)
    return keys


class Seen:
    """Which prefixes were computed before: what is asked for again and not found was evicted."""

    def __init__(self) -> None:
        self._keys: set[int] = set()

    def known_tokens(self, prompt: list[int], salt: str | None) -> int:
        """Tokens of the prompt's longest prefix that a finished request had, in whole pages."""
        number = 0
        for key in page_keys(prompt, salt):
            if key not in self._keys:
                break
            number += 1
        return number * _PAGE_TOKENS

    def add(self, prompt: list[int], salt: str | None) -> None:
        """A request is finished."""
        self._keys.update(page_keys(prompt, salt))
