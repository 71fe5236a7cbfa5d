"""Runs a trace through a tree at one capacity and counts what was found where.

Two modes. Unpinned: a request takes its hits as it arrives, then its whole prompt is inserted and the cache
is evicted down to its capacity. Pinned: a request holds its path and its own pages from arrival to end, waits
in line while the pool cannot admit it, and inserts when it ends.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from radiximp.replay.trace import Request
from radiximp.replay.tree import Node, ReplayTree

# A request without a recorded service time runs this long; a model, not a measurement.
PREFILL_TOKENS_PER_S = 10_000.0
SECONDS_PER_OUTPUT_TOKEN = 0.03


@dataclass
class Counts:
    """Token counts over the requests after the warm-up."""

    requests: int = 0
    prompt_tokens: int = 0
    device_hit_tokens: int = 0
    host_hit_tokens: int = 0
    refused: int = 0

    def add(self, request: Request, device_tokens: int, host_tokens: int) -> None:
        """Count one request; a partial last page counts the tokens it holds."""
        device_tokens = min(device_tokens, request.num_tokens)
        self.requests += 1
        self.prompt_tokens += request.num_tokens
        self.device_hit_tokens += device_tokens
        self.host_hit_tokens += min(host_tokens, request.num_tokens - device_tokens)


@dataclass(order=True)
class _Running:
    end_s: float
    number: int
    request: Request = field(compare=False)
    path: list[Node] = field(compare=False)
    own_pages: int = field(compare=False)


def hit_pages(path: list[Node]) -> tuple[int, int]:
    """(pages on the device, pages after them on the host) of a matched path."""
    device = sum(len(node) for node in path if node.is_on_device)
    return device, sum(len(node) for node in path) - device


def replay_unpinned(
    tree: ReplayTree, requests: Iterable[Request], capacity_pages: int, num_warmup: int
) -> Counts:
    """Every request is over as it arrives."""
    counts = Counts()
    for number, request in enumerate(requests):
        now_s = request.arrival_s
        path = tree.match(request.namespace, request.page_ids)
        device, host = hit_pages(path)
        if number >= num_warmup:
            counts.add(request, device * tree.page_tokens, host * tree.page_tokens)
        tree.load_back(path)
        tree.extend(path, request.namespace, request.page_ids[device + host :])
        tree.record(path, now_s)
        tree.record_end(path, request.finish, request.output_tokens, now_s)
        tree.back_up(path)
        if tree.device_pages > capacity_pages:
            tree.evict(tree.device_pages - capacity_pages, now_s)
    return counts


class PinnedReplay:
    """Requests hold memory while they run."""

    def __init__(self, tree: ReplayTree, capacity_pages: int, num_warmup: int) -> None:
        self._tree = tree
        self._capacity_pages = capacity_pages
        self._num_warmup = num_warmup
        self._running: list[_Running] = []
        self._waiting: deque[tuple[int, Request]] = deque()
        self._own_pages = 0
        self._numbers = itertools.count()
        self.counts = Counts()

    def run(self, requests: Iterable[Request]) -> Counts:
        """Replay all requests to their end."""
        for number, request in enumerate(requests):
            while self._running and self._running[0].end_s <= request.arrival_s:
                self._end(heapq.heappop(self._running))
            self._waiting.append((number, request))
            self._admit(request.arrival_s)
        while self._running:
            self._end(heapq.heappop(self._running))
        return self.counts

    def _admit(self, now_s: float) -> None:
        while self._waiting and self._start(*self._waiting[0], now_s):
            self._waiting.popleft()

    def _start(self, number: int, request: Request, now_s: float) -> bool:
        """Give a request its memory; False if it must wait for a running one to end."""
        tree = self._tree
        output_pages = -(-request.output_tokens // tree.page_tokens)
        if len(request.page_ids) + output_pages > self._capacity_pages:
            self.counts.refused += 1
            if number >= self._num_warmup:
                self.counts.add(request, 0, 0)
            return True
        path = tree.match(request.namespace, request.page_ids)
        device, host = hit_pages(path)
        own_pages = len(request.page_ids) - device - host + output_pages
        tree.lock(path, 1)
        shortfall = tree.device_pages + host + self._own_pages + own_pages - self._capacity_pages
        if shortfall > 0 and tree.evict(shortfall, now_s) < shortfall:
            tree.lock(path, -1)
            return False
        if number >= self._num_warmup:
            self.counts.add(request, device * tree.page_tokens, host * tree.page_tokens)
        tree.load_back(path)
        tree.record(path, now_s)
        self._own_pages += own_pages
        prefill_tokens = (own_pages - output_pages) * tree.page_tokens
        service_s = request.service_s
        if service_s is None:
            service_s = (
                prefill_tokens / PREFILL_TOKENS_PER_S + request.output_tokens * SECONDS_PER_OUTPUT_TOKEN
            )
        run = _Running(now_s + service_s, next(self._numbers), request, path, own_pages)
        heapq.heappush(self._running, run)
        return True

    def _end(self, run: _Running) -> None:
        tree, request = self._tree, run.request
        tree.lock(run.path, -1)
        self._own_pages -= run.own_pages
        path = tree.match(request.namespace, request.page_ids)
        known = sum(map(len, path))
        # What it held while it ran, into whatever pieces that was cut since, was recorded at the start.
        num_recorded = path.index(run.path[-1]) + 1 if run.path else 0
        tree.load_back(path)
        tree.extend(path, request.namespace, request.page_ids[known:])
        tree.record(path[num_recorded:], run.end_s)
        tree.record_end(path, request.finish, request.output_tokens, run.end_s)
        tree.back_up(path)
        over = tree.device_pages + self._own_pages - self._capacity_pages
        if over > 0:
            tree.evict(over, run.end_s)
        self._admit(run.end_s)
