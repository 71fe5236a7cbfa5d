"""The most that any policy could hit: evict the page whose next use is farthest, known from the trace itself.

A deeper page is never used before a shallower one of its prefix, so this never leaves a hole in a prompt. Each
request inserts its whole prompt and the cache is then cut to its capacity, as in `engine.replay_unpinned`; no
policy hits more pages there (a partial last page counts fewer tokens, the one place where tokens may differ).
Belady, A study of replacement algorithms for a virtual-storage computer (1966).
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from radiximp.policy.prefix_digest import num_agreed
from radiximp.replay.engine import Counts
from radiximp.replay.trace import Request

_NEVER = 1 << 62
_NO_PAGES = np.zeros(0, np.int64)


class _Run:
    """Pages that every request of the trace uses together, and the numbers of those requests."""

    __slots__ = ("parent", "children", "page_ids", "uses", "depth_pages", "num_uses", "resident_pages")

    def __init__(self, parent: _Run | None, page_ids: np.ndarray, uses: array) -> None:
        self.parent = parent
        self.children: dict[int, _Run] = {}
        self.page_ids = page_ids
        self.uses = uses

    def split(self, head_pages: int) -> _Run:
        """Cut; returns the new head."""
        head = _Run(self.parent, self.page_ids[:head_pages].copy(), self.uses[:])
        self.parent.children[int(head.page_ids[0])] = head
        self.page_ids = self.page_ids[head_pages:].copy()
        self.parent = head
        head.children[int(self.page_ids[0])] = self
        return head

    def path(self) -> list[_Run]:
        """From the root's child down to this run."""
        found, run = [], self
        while run.parent is not None:
            found.append(run)
            run = run.parent
        return found[::-1]


class Belady:
    """A trace with its future known; reads the requests once, then replays at any capacity.

    Holds the distinct pages and O(runs per request) numbers. A replay is O(log) per run of each request's path.
    """

    def __init__(self, requests: Iterable[Request]) -> None:
        self._roots: dict[str, _Run] = {}
        self._requests: list[Request] = []
        self._ends: list[_Run] = []
        for number, request in enumerate(requests):
            self._ends.append(self._insert(number, request))
            self._requests.append(replace(request, page_ids=_NO_PAGES))
        self._runs = self._in_depth_order()

    def _insert(self, number: int, request: Request) -> _Run:
        """The run that the prompt ends with."""
        page_ids, position = request.page_ids, 0
        run = self._roots.get(request.namespace)
        if run is None:
            run = self._roots[request.namespace] = _Run(None, _NO_PAGES, array("q"))
        while position < len(page_ids):
            child = run.children.get(int(page_ids[position]))
            if child is None:
                child = _Run(run, page_ids[position:].copy(), array("q"))
                run.children[int(page_ids[position])] = child
            agreed = num_agreed(child.page_ids, page_ids[position:])
            if agreed < len(child.page_ids):
                child = child.split(agreed)
            child.uses.append(number)
            position += agreed
            run = child
        return run

    def _in_depth_order(self) -> list[_Run]:
        runs, stack = [], list(self._roots.values())
        while stack:
            run = stack.pop()
            run.depth_pages = 0 if run.parent is None else run.parent.depth_pages + len(run.parent.page_ids)
            runs.append(run)
            stack.extend(run.children.values())
        return runs

    def replay(self, capacity_pages: int, page_tokens: int, num_warmup: int = 0) -> Counts:
        """What a cache of that capacity hits at most, requests after the warm-up counted."""
        for run in self._runs:
            run.num_uses = run.resident_pages = 0
        counts = Counts()
        self._held_pages = 0
        # (-next use, -depth, request, place in it, uses so far, run): stale once the run was used again.
        self._order: list[tuple] = []
        for number, (request, end) in enumerate(zip(self._requests, self._ends, strict=True)):
            hit_pages = self._use(number, end.path())
            if number >= num_warmup:
                counts.add(request, hit_pages * page_tokens, 0)
            self._evict(self._held_pages - capacity_pages)
        return counts

    def _use(self, number: int, path: list[_Run]) -> int:
        """Make the path resident; returns the pages that already were."""
        hit_pages = 0
        for place, run in enumerate(path):
            hit_pages += run.resident_pages
            self._held_pages += len(run.page_ids) - run.resident_pages
            run.resident_pages = len(run.page_ids)
            run.num_uses += 1
            next_use = run.uses[run.num_uses] if run.num_uses < len(run.uses) else _NEVER
            heapq.heappush(self._order, (-next_use, -run.depth_pages, number, place, run.num_uses, run))
        return hit_pages

    def _evict(self, num_pages: int) -> None:
        while num_pages > 0:
            *_, num_uses, run = self._order[0]
            if num_uses != run.num_uses or run.resident_pages == 0:
                heapq.heappop(self._order)
                continue
            freed = min(num_pages, run.resident_pages)
            run.resident_pages -= freed
            self._held_pages -= freed
            num_pages -= freed


def replay_belady(
    requests: Iterable[Request], capacity_pages: int, page_tokens: int, num_warmup: int = 0
) -> Counts:
    """`Belady` at one capacity."""
    return Belady(requests).replay(capacity_pages, page_tokens, num_warmup)
