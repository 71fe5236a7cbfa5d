"""One cell of a comparison: a trace, a policy by name, a size. Everything that replays goes through `replay_one`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import islice, pairwise
from typing import Any

from radiximp.config import PolicyConfig
from radiximp.policy.registry import POLICIES, make_named_policy
from radiximp.replay.belady import replay_belady
from radiximp.replay.engine import Counts, PinnedReplay, replay_unpinned
from radiximp.replay.trace import Request, Trace
from radiximp.replay.tree import ReplayTree

# Knows the future, so it is no policy: the bound that none can pass, for one tier and requests that do not pin.
BOUND = "belady"
POLICY_NAMES = (*POLICIES, BOUND)
WRITE_POLICIES = ("write_through", "write_through_selective", "write_back")
NUM_PARTS = 4
_PROGRESS_REQUESTS = 64

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Row:
    """What one replay found after the warm-up. device + host hits = hits.

    evicted_tokens: that left the device; None for `belady`, which does not count them.
    parts: (prompt tokens, hit tokens) of each quarter of the requests after the warm-up; () for `belady`.
    refused_requests: that never fit on the device (`pin_running`); counted, and found nothing.
    """

    trace: str
    policy: str
    capacity_tokens: int
    host_capacity_tokens: int
    requests: int
    prompt_tokens: int
    device_hit_tokens: int
    host_hit_tokens: int
    evicted_tokens: int | None
    seed: int
    seconds: float
    parts: tuple[tuple[int, int], ...] = ()
    refused_requests: int = 0

    @property
    def hit_tokens(self) -> int:
        """Prompt tokens that were found, on either tier."""
        return self.device_hit_tokens + self.host_hit_tokens

    @property
    def hit_rate(self) -> float | None:
        """Share of the prompt tokens that were found; None if none were asked for."""
        return self._share(self.hit_tokens)

    def part_rates(self) -> list[float | None]:
        """The hit rate of each part."""
        return [hits / prompt_tokens if prompt_tokens else None for prompt_tokens, hits in self.parts]

    def _share(self, num_tokens: int) -> float | None:
        return num_tokens / self.prompt_tokens if self.prompt_tokens else None

    def as_json(self) -> dict[str, Any]:
        """The row of a result file; `seconds` alone differs between equal runs."""
        return {
            "trace": self.trace,
            "policy": self.policy,
            "capacity_tokens": self.capacity_tokens,
            "host_capacity_tokens": self.host_capacity_tokens,
            "requests": self.requests,
            "prompt_tokens": self.prompt_tokens,
            "hit_tokens": self.hit_tokens,
            "hit_rate": self.hit_rate,
            "device_hit_rate": self._share(self.device_hit_tokens),
            "host_hit_rate": self._share(self.host_hit_tokens),
            "evicted_tokens": self.evicted_tokens,
            "seed": self.seed,
            "seconds": round(self.seconds, 3),
        }


def replay_one(
    trace: Trace,
    policy_name: str,
    config: PolicyConfig,
    capacity_pages: int,
    host_capacity_pages: int = 0,
    *,
    num_requests: int,
    num_warmup: int = 0,
    write_policy: str = "write_through",
    pin_running: bool = False,
    seed: int = 0,
    on_progress: Progress = lambda num_requests: None,
) -> Row:
    """Replay the whole trace once. Raises TraceError.

    num_requests: of the trace, as its survey says. on_progress: told how many more requests are done.
    """
    started = time.perf_counter()
    requests = _counted(trace.requests(), on_progress)
    if policy_name == BOUND:
        if host_capacity_pages or pin_running:
            raise ValueError(f"{BOUND} bounds one tier, and requests that do not pin")
        found = [replay_belady(requests, capacity_pages, trace.page_tokens, num_warmup)]
        evicted_pages = None
    else:
        tree = new_tree(policy_name, config, trace.page_tokens, host_capacity_pages, write_policy, seed)
        both_tiers = capacity_pages + host_capacity_pages
        held_pages = both_tiers if write_policy == "write_back" else max(capacity_pages, host_capacity_pages)
        tree.policy.note_capacity(held_pages * trace.page_tokens)
        starts = [num_warmup + part * (num_requests - num_warmup) // NUM_PARTS for part in range(NUM_PARTS)]
        found, evicted_pages = (_pinned if pin_running else _unpinned)(tree, requests, capacity_pages, starts)
    return Row(
        trace=trace.name,
        policy=policy_name,
        capacity_tokens=capacity_pages * trace.page_tokens,
        host_capacity_tokens=host_capacity_pages * trace.page_tokens,
        requests=sum(counts.requests for counts in found),
        prompt_tokens=sum(counts.prompt_tokens for counts in found),
        device_hit_tokens=sum(counts.device_hit_tokens for counts in found),
        host_hit_tokens=sum(counts.host_hit_tokens for counts in found),
        evicted_tokens=None if evicted_pages is None else evicted_pages * trace.page_tokens,
        seed=seed,
        seconds=time.perf_counter() - started,
        refused_requests=sum(counts.refused for counts in found),
        parts=()
        if policy_name == BOUND
        else tuple(
            (counts.prompt_tokens, counts.device_hit_tokens + counts.host_hit_tokens) for counts in found
        ),
    )


def new_tree(
    policy_name: str,
    config: PolicyConfig,
    page_tokens: int,
    host_capacity_pages: int = 0,
    write_policy: str = "write_through",
    seed: int = 0,
) -> ReplayTree:
    """An empty cache under a policy. Where a policy has ghosts or trims, the config says how many and how short."""
    entry = POLICIES[policy_name]
    is_lru = policy_name == "importance" and config.is_lru
    return ReplayTree(
        make_named_policy(policy_name, config, seed),
        page_tokens,
        host_capacity_pages,
        write_policy,
        config.ghost_factor if entry.has_ghosts and not is_lru else 0,
        config.trim_tokens if entry.trims and not is_lru else 0,
    )


def _counted(requests: Iterable[Request], on_progress: Progress) -> Iterator[Request]:
    number = 0
    for number, request in enumerate(requests, 1):
        yield request
        if number % _PROGRESS_REQUESTS == 0:
            on_progress(_PROGRESS_REQUESTS)
    on_progress(number % _PROGRESS_REQUESTS)


def _unpinned(
    tree: ReplayTree, requests: Iterator[Request], capacity_pages: int, starts: Sequence[int]
) -> tuple[list[Counts], int]:
    """(counts of each part, device pages evicted in them); starts: the number of each part's first request."""
    replay_unpinned(tree, islice(requests, starts[0]), capacity_pages, starts[0])
    evicted_before = tree.num_evicted_pages["device"]
    lengths = [*(end - start for start, end in pairwise(starts)), None]
    found = [replay_unpinned(tree, islice(requests, length), capacity_pages, 0) for length in lengths]
    return found, tree.num_evicted_pages["device"] - evicted_before


def _pinned(
    tree: ReplayTree, requests: Iterator[Request], capacity_pages: int, starts: Sequence[int]
) -> tuple[list[Counts], int]:
    """The same for one run that lasts: a request counts in the part in which it is admitted."""
    replay = PinnedReplay(tree, capacity_pages, starts[0])
    evicted_before = 0
    totals = []

    def watched() -> Iterator[Request]:
        nonlocal evicted_before
        for number, request in enumerate(requests):
            if number == starts[0]:
                evicted_before = tree.num_evicted_pages["device"]
            while len(totals) < len(starts) and number == starts[len(totals)]:
                totals.append(replace(replay.counts))
            yield request

    totals.append(replay.run(watched()))
    found = [
        Counts(*(after - before for before, after in zip(astuple(one), astuple(other), strict=True)))
        for one, other in pairwise(totals)
    ]
    return found, tree.num_evicted_pages["device"] - evicted_before
