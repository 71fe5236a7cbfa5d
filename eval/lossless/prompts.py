"""The prompts: needles in documents of 1k to 8k tokens, conversations with tools, coding agents, chat. Pure, by block number.

Every block has the same mix, so that a run cut short is a smaller run of the same kind. Prompts of a block share documents and
beginnings of conversations, so that the cache has something to find.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from eval import talks
from eval.talks import Message, encoded

PAGE_TOKENS = 16
MAX_TALK_TOKENS = 2200
NAMES = ("Alda", "Brom", "Cora", "Dain", "Edda", "Finn", "Gerta", "Hugo")
WORDS = ("banana", "copper", "violin", "window", "garden", "button", "pepper", "castle", "rabbit", "orange", "silver", "bottle",
         "candle", "forest", "hammer", "jacket", "kettle", "ladder", "mirror", "needle", "pencil", "ribbon", "saddle", "tunnel")  # fmt: skip
_HEAD = "<|im_start|>system\nRead this text; questions about it follow.\n\n"
_NEUTRAL = "What is this text about?"


@dataclass(frozen=True)
class Document:
    """`num_tokens` of filler with a needle for each of `words`: "The secret word of NAME is WORD."."""

    number: int
    num_tokens: int
    words: tuple[str, ...]


@dataclass(frozen=True)
class Prompt:
    """kind: of what; expected: the word that the answer should begin with, "" where there is none."""

    kind: str
    ids: list[int]
    expected: str = ""


@dataclass(frozen=True)
class Mix:
    """How many of each kind a block has. documents: (tokens, how many, questions each, in every which block)."""

    documents: tuple[tuple[int, int, int, int], ...] = (
        (1000, 2, 6, 1),
        (2000, 1, 3, 1),
        (4000, 1, 2, 2),
        (7900, 1, 2, 5),
    )
    tool_talks: int = 2
    turns: int = 4
    agent_turns: int = 2
    chats: int = 39


SMOKE = Mix(documents=((500, 2, 3, 1),), tool_talks=0, agent_turns=0, chats=4)


def documents(block: int, mix: Mix) -> list[Document]:
    """Those of a block, each with a needle for each of its questions."""
    rng, found = random.Random(f"documents {block}"), []
    for num_tokens, how_many, num_questions, every in mix.documents:
        for _ in range(how_many if block % every == 0 else 0):
            words = tuple(rng.sample(WORDS, num_questions))
            found.append(Document(1000 * block + len(found), num_tokens, words))
    return found


def filler(tokenizer, document: Document) -> list[int]:
    """Head and plain text, without needles and without the end of the message."""
    text, num_chars = talks.shakespeare(), document.num_tokens * 5
    begin = random.Random(f"filler {document.number}").randrange(len(text) - num_chars)
    return tokenizer.encode(_HEAD + text[begin : begin + num_chars])[: document.num_tokens]


def question(tokenizer, text: str, start_of_answer: str = "") -> list[int]:
    """What follows a document."""
    return tokenizer.encode(
        f"<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n{start_of_answer}"
    )


def neutral(tokenizer) -> list[int]:
    """A question about none of the needles."""
    return question(tokenizer, _NEUTRAL)


def with_needles(tokenizer, document: Document, pages: list[int]) -> list[int]:
    """The filler with each needle over what began at its page."""
    ids = filler(tokenizer, document)
    for name, word, page in zip(NAMES, document.words, pages, strict=False):
        needle = tokenizer.encode(f" The secret word of {name} is {word}. ")
        ids[page * PAGE_TOKENS : page * PAGE_TOKENS + len(needle)] = needle
    return ids[: document.num_tokens]


def of_documents(tokenizer, found: list[Document], places: dict[int, list[int]]) -> list[Prompt]:
    """Each document's questions; places: of its needles, by its number."""
    prompts = []
    for document in found:
        ids = with_needles(tokenizer, document, places[document.number])
        kind = f"needle {document.num_tokens}"
        for name, word in zip(NAMES, document.words, strict=False):
            asked = question(
                tokenizer, f"What is the secret word of {name}?", f"The secret word of {name} is"
            )
            prompts.append(Prompt(kind, ids + asked, word))
    return prompts


def of_talks(tokenizer, block: int, mix: Mix) -> list[Prompt]:
    """Turns of conversations: what the assistant is asked after each of the first."""
    prompts = []
    for i in range(mix.tool_talks):
        talk = talks.tools()[(block * mix.tool_talks + i) % 100]
        prompts += _turns(tokenizer, "tools", talk, mix.turns)
    if mix.agent_turns:
        agents = talks.agents()
        prompts += _turns(tokenizer, "agent", agents[block % len(agents)], mix.agent_turns)
    asked = talks.questions()
    for i in range(mix.chats):
        _, (first, second) = asked[(block * mix.chats + i) % len(asked)]
        # The system message is another one each time round, as are the prompts.
        talk = [Message("system", f"You are assistant number {block}. Be brief and correct."), Message("user", first),
                Message("assistant", "Here is what I can say."), Message("user", second), Message("assistant", "")]  # fmt: skip
        prompts += _turns(tokenizer, "chat", talk, 2)
    return prompts


def _turns(tokenizer, kind: str, talk: list[Message], num_turns: int) -> list[Prompt]:
    found = []
    for number, message in enumerate(talk):
        if message.role != "assistant" or len(found) == num_turns:
            continue
        before = encoded(tokenizer, talk[:number], MAX_TALK_TOKENS)
        if len(before.spans) < number:  # it does not fit any more
            break
        found.append(Prompt(kind, before.ids + tokenizer.encode("<|im_start|>assistant\n")))
    return found


def block_prompts(tokenizer, block: int, mix: Mix, places: dict[int, list[int]]) -> list[Prompt]:
    """All prompts of a block in the order in which they are asked, siblings apart from each other."""
    prompts = of_documents(tokenizer, documents(block, mix), places) + of_talks(tokenizer, block, mix)
    random.Random(f"order {block}").shuffle(prompts)
    return prompts
