"""The first pass over a trace: how many requests it has, and how many pages a cache without limit would hold.

Holds each distinct page once, as an infinite prefix tree: memory grows with distinct pages, not with requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from radiximp.policy.prefix_digest import num_agreed
from radiximp.replay.trace import Trace

_PROGRESS_REQUESTS = 256


@dataclass(frozen=True, slots=True)
class Survey:
    """num_distinct_pages: of the infinite prefix tree, so equal pages after different prefixes count each."""

    page_tokens: int
    notes: tuple[str, ...]
    num_requests: int
    num_prompt_tokens: int
    num_distinct_pages: int

    @property
    def num_distinct_tokens(self) -> int:
        """Tokens of a cache that never has to evict."""
        return self.num_distinct_pages * self.page_tokens

    def num_warmup(self, share: float) -> int:
        """How many requests at the start only warm the cache."""
        return int(self.num_requests * share)


class _Run:
    """Pages that follow each other in every prompt that has the first of them."""

    __slots__ = ("page_ids", "children")

    def __init__(self, page_ids: np.ndarray, children: dict[int, _Run]) -> None:
        self.page_ids = page_ids
        self.children = children


def survey(trace: Trace, on_progress: Callable[[int], None] = lambda num_requests: None) -> Survey:
    """Reads the whole trace once; calls on_progress with how many more requests it has read. Raises TraceError."""
    roots: dict[str, _Run] = {}
    num_requests = num_prompt_tokens = num_distinct_pages = 0
    for request in trace.requests():
        num_requests += 1
        num_prompt_tokens += request.num_tokens
        root = roots.get(request.namespace)
        if root is None:
            root = roots[request.namespace] = _Run(request.page_ids[:0], {})
        num_distinct_pages += _insert(root, request.page_ids)
        if num_requests % _PROGRESS_REQUESTS == 0:
            on_progress(_PROGRESS_REQUESTS)
    on_progress(num_requests % _PROGRESS_REQUESTS)
    return Survey(trace.page_tokens, trace.notes, num_requests, num_prompt_tokens, num_distinct_pages)


def _insert(node: _Run, page_ids: np.ndarray) -> int:
    """Add a prompt, [n] int64, below the root; returns how many of its pages are new."""
    position = 0
    while position < len(page_ids):
        first = int(page_ids[position])
        child = node.children.get(first)
        if child is None:
            node.children[first] = _Run(page_ids[position:].copy(), {})
            return len(page_ids) - position
        agreed = num_agreed(child.page_ids, page_ids[position:])
        if agreed < len(child.page_ids):
            tail = _Run(child.page_ids[agreed:].copy(), child.children)
            child.page_ids = child.page_ids[:agreed].copy()
            child.children = {int(tail.page_ids[0]): tail}
        position += agreed
        node = child
    return 0
