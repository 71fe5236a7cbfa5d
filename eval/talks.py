"""Conversations with their text, as the evaluations of attention and of answers use them.

    tools   tau-bench: a long system message that all share, a user, an agent that calls tools
    agents  SWE-agent: demonstrations of a coding agent, one command a turn
    quotes  several questions about one document (Shakespeare); each answer is a passage of it, word for word
    chat    MT-bench's two-turn questions, eight in a row, with answers that the served model gave

The first three answers are recorded text. Needs `../shared/traces`, or the folder that RADIXIMP_TRACES names.
"""

from __future__ import annotations

import functools
import gzip
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from eval import public_traces

QUESTIONS_IN_A_ROW = 8
QUOTE_WORDS = 40
_MAX_BEGINNING_CHARS = 12_000
_DOCUMENT_CHARS = (4_000, 12_000, 26_000)


@dataclass(frozen=True)
class Message:
    """role: system, user, assistant or tool."""

    role: str
    text: str


@dataclass(frozen=True)
class Encoded:
    """A conversation as token ids in ChatML, and whose tokens they are: (role, begin, end) of each message, in order."""

    ids: list[int]
    spans: list[tuple[str, int, int]]

    def role_of(self, position: int) -> str:
        """Whose message a token is in."""
        return next(role for role, _, end in self.spans if position < end)


def encoded(tokenizer, messages: Sequence[Message], max_tokens: int) -> Encoded:
    """The first messages that fit whole; a first one that does not fit is cut."""
    ids: list[int] = []
    spans = []
    for message in messages:
        piece = tokenizer.encode(f"<|im_start|>{message.role}\n{message.text}<|im_end|>\n")
        if len(ids) + len(piece) > max_tokens:
            if ids:
                break
            piece = piece[:max_tokens]
        spans.append((message.role, len(ids), len(ids) + len(piece)))
        ids += piece
    return Encoded(ids, spans)


@functools.cache
def tools() -> list[list[Message]]:
    """The longest conversations first."""
    rows = json.loads(gzip.open(public_traces.find("tau_bench_airline_dev.json.gz")).read())
    rows.sort(key=lambda row: (-len(row["traj"]), row["task_id"], row["trial"]))
    return [
        [Message(m["role"], m.get("content") or json.dumps(m.get("tool_calls"))) for m in row["traj"]]
        for row in rows
    ]


@functools.cache
def agents() -> list[list[Message]]:
    """Those with many turns first."""
    lines = gzip.open(public_traces.find("swe_agent_demos.jsonl.gz")).read().splitlines()
    talks = [[Message(m["role"], str(m["content"])) for m in json.loads(line)["history"]] for line in lines]
    # Where the demonstration at the beginning is too long, no turn of the agent's own fits.
    talks = [talk for talk in talks if sum(len(message.text) for message in talk[:2]) < _MAX_BEGINNING_CHARS]
    return sorted(talks, key=len, reverse=True)


@functools.cache
def shakespeare() -> str:
    """Five million characters of plays and poems."""
    return gzip.open(public_traces.find("shakespeare.txt.gz")).read().decode()


def quotes(number: int, num_questions: int = 6) -> list[Message]:
    """One document, of one of three lengths, and questions about passages of it."""
    rng, text = random.Random(number), shakespeare()
    num_chars = _DOCUMENT_CHARS[number % len(_DOCUMENT_CHARS)]
    begin = rng.randrange(len(text) - num_chars)
    document = text[begin : begin + num_chars]
    words = document.split(" ")
    talk = [Message("system", "Answer with passages of this document, word for word.\n\n" + document)]
    for _ in range(num_questions):
        at = rng.randrange(len(words) - QUOTE_WORDS)
        start, rest = words[at : at + 8], words[at + 8 : at + QUOTE_WORDS]
        talk.append(Message("user", f'How does the document go on after "{" ".join(start)}"?'))
        talk.append(Message("assistant", " ".join(rest)))
    return talk


@functools.cache
def questions() -> list[tuple[str, list[str]]]:
    """(category, two turns) of MT-bench."""
    lines = gzip.open(public_traces.find("mt_bench_question.jsonl.gz")).read().splitlines()
    rows = [json.loads(line) for line in lines]
    return [(row["category"], row["turns"]) for row in rows]


def chat(number: int, exchanges: Sequence[Sequence[str]]) -> list[Message]:
    """Eight exchanges in an order of its own, even ones in even chats; exchanges: [question, answer, question, answer] each."""
    chosen = random.Random(number).sample(range(number % 2, len(exchanges), 2), QUESTIONS_IN_A_ROW)
    talk = [Message("system", "You are a helpful AI assistant named SmolLM, trained by Hugging Face")]
    for i in chosen:
        talk += [
            Message(role, text) for role, text in zip(("user", "assistant") * 2, exchanges[i], strict=True)
        ]
    return talk
