"""Traces made to hurt: each favours recency, or breaks what a policy may have learned. Seeded, page 16.

Every generator yields `Request`s; `ADVERSARIAL` names them. Sizes are in pages; a working set is about 2,000 pages.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import numpy as np

from radiximp.replay.trace import Request, Trace

PAGE_TOKENS = 16
_HEAD_PAGES = 8


def _prompt(rng: random.Random, content: int, num_pages: int, head: int = 0) -> np.ndarray:
    """A prompt of its own after one of a few shared heads."""
    shared = np.arange(_HEAD_PAGES, dtype=np.int64) + head * 1000
    own = (np.int64(content + 1) << 20) + np.arange(num_pages, dtype=np.int64)
    return np.concatenate([shared, own])


def _request(at_s: float, page_ids: np.ndarray) -> Request:
    return Request(at_s, page_ids, len(page_ids) * PAGE_TOKENS, output_tokens=32)


def recency(seed: int) -> Iterator[Request]:
    """Stack distances are geometric: the last used is the next used, and nothing else matters."""
    rng, stack, fresh = random.Random(seed), [], itertools.count()
    for number in range(12_000):
        depth = int(rng.expovariate(1 / 25))
        content = stack.pop(-1 - depth) if depth < len(stack) and rng.random() < 0.95 else next(fresh)
        stack.append(content)
        del stack[:-2000]
        yield _request(number * 1.0, _prompt(rng, content, 20))


def loop(seed: int) -> Iterator[Request]:
    """A cycle a little larger than any cache but the largest: lru gets nothing from it."""
    rng = random.Random(seed)
    for number in range(12_000):
        yield _request(number * 1.0, _prompt(rng, number % 100, 20))


def scan(seed: int) -> Iterator[Request]:
    """A hot set, and long runs of prompts that never come back."""
    rng, fresh = random.Random(seed), itertools.count(10_000)
    for number in range(12_000):
        is_scan = (number // 300) % 2 == 1 and rng.random() < 0.8
        content = next(fresh) if is_scan else min(int(rng.expovariate(1 / 20)), 200)
        yield _request(number * 1.0, _prompt(rng, content, 20))


def phase_change(seed: int) -> Iterator[Request]:
    """Every 1,500 requests the hot set is replaced and what was cold comes back at other gaps."""
    rng = random.Random(seed)
    for number in range(12_000):
        phase = number // 1500
        width = (30, 120, 15, 60)[phase % 4]
        content = phase * 10_000 + min(int(rng.expovariate(1 / width)), 8 * width)
        yield _request(number * 1.0, _prompt(rng, content, 20, head=phase % 2))


def burst(seed: int) -> Iterator[Request]:
    """Prompts used many times within a second and then not for an hour, between steady ones."""
    rng, fresh, at_s = random.Random(seed), itertools.count(50_000), 0.0
    for _ in range(2400):
        at_s += rng.expovariate(1.0)
        if rng.random() < 0.15:
            content = next(fresh)
            for _ in range(20):
                at_s += 0.02
                yield _request(at_s, _prompt(rng, content, 20))
        else:
            yield _request(at_s, _prompt(rng, min(int(rng.expovariate(1 / 40)), 300), 20))


def giant_leaf(seed: int) -> Iterator[Request]:
    """One prompt of 600 pages, used now and then, beside many short ones."""
    rng = random.Random(seed)
    for number in range(12_000):
        if rng.random() < 0.02:
            yield _request(number * 1.0, _prompt(rng, 999_999, 600, head=3))
        else:
            yield _request(number * 1.0, _prompt(rng, min(int(rng.expovariate(1 / 40)), 400), 20))


GENERATORS = {
    "recency": recency,
    "loop": loop,
    "scan": scan,
    "phase_change": phase_change,
    "burst": burst,
    "giant_leaf": giant_leaf,
}


def adversarial(name: str, seed: int = 0) -> Trace:
    """One of `GENERATORS` as a trace."""
    notes = (f"{name}: generated, seed {seed}",)
    return Trace(name, PAGE_TOKENS, notes, lambda: GENERATORS[name](seed))
