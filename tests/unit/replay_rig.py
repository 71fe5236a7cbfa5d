"""Small random traces, and a brute-force reading of a policy's order."""

from __future__ import annotations

import random

import numpy as np

from radiximp.config import PolicyConfig
from radiximp.policy.registry import POLICIES, make_named_policy
from radiximp.replay.trace import Request
from radiximp.replay.tree import ReplayTree

PAGE_TOKENS = 16
FINISHES = ("", "tool_use", "end_turn")


def make_tree(name: str, seed: int = 0, config: PolicyConfig | None = None, **options) -> ReplayTree:
    """A tree in which the named policy runs as its registry entry says, unless the options say otherwise."""
    entry = POLICIES[name]
    defaults = {
        "ghost_factor": 4 if entry.has_ghosts else 0,
        "trim_tokens": 1 if entry.trims else 0,
        "page_tokens": PAGE_TOKENS,
    }
    return ReplayTree(make_named_policy(name, config, seed), **(defaults | options))


def random_requests(seed: int, num_requests: int, num_sessions: int = 8, max_turn: int = 12) -> list[Request]:
    """Conversations of whole pages that share openings, grow, branch, end and come back."""
    rng = random.Random(seed)
    numbers = iter(range(10**6, 10**9))
    openings = [[next(numbers) for _ in range(rng.randint(1, max_turn))] for _ in range(3)]
    prompts = [list(rng.choice(openings)) for _ in range(num_sessions)]
    now_s, requests = 0.0, []
    for _ in range(num_requests):
        now_s += rng.choice((0.0, 0.1, rng.expovariate(0.2)))
        session = min(int(rng.expovariate(0.4)), num_sessions - 1)
        prompt = prompts[session]
        if rng.random() < 0.1:
            prompt = list(rng.choice(openings))
        elif rng.random() < 0.15:
            prompt = prompt[: rng.randint(1, len(prompt))]
        prompt = prompt + [next(numbers) for _ in range(rng.randint(0, max_turn))]
        prompts[session] = prompt if len(prompt) < 8 * max_turn else list(rng.choice(openings))
        requests.append(
            Request(
                arrival_s=now_s,
                page_ids=np.array(prompt, np.int64),
                num_tokens=len(prompt) * PAGE_TOKENS,
                output_tokens=rng.randrange(200),
                service_s=rng.expovariate(1.0),
                finish=rng.choice(FINISHES),
                namespace=rng.choice(("", "", "tenant")),
            )
        )
    return requests


def lowest(index, policy) -> object | None:
    """The leaf that the contract says is first: least (key, id)."""
    return min(index, key=lambda leaf: (*policy.key(leaf), leaf.id), default=None)
