"""One cell of a comparison: a trace, a policy by name, a size. Everything that replays goes through `replay_one`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
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
_PROGRESS_REQUESTS = 64

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Row:
    """What one replay found after the warm-up. device + host hits = hits.

    evicted_tokens: that left the device; None for `belady`, which does not count them.
    halves: (prompt tokens, hit tokens) of the first and the second half of the requests after the warm-up;
    for `belady` all are in the first.
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
    halves: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))

    @property
    def hit_tokens(self) -> int:
        """Prompt tokens that were found, on either tier."""
        return self.device_hit_tokens + self.host_hit_tokens

    @property
    def hit_rate(self) -> float | None:
        """Share of the prompt tokens that were found; None if none were asked for."""
        return self._share(self.hit_tokens)

    def half_rate(self, half: int) -> float | None:
        """The hit rate of one half, 0 or 1."""
        prompt_tokens, hit_tokens = self.halves[half]
        return hit_tokens / prompt_tokens if prompt_tokens else None

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
    sizes = num_warmup, (num_requests - num_warmup) // 2
    if policy_name == BOUND:
        if host_capacity_pages or pin_running:
            raise ValueError(f"{BOUND} bounds one tier, and requests that do not pin")
        first, second = replay_belady(requests, capacity_pages, trace.page_tokens, num_warmup), Counts()
        evicted_pages = None
    else:
        tree = new_tree(policy_name, config, trace.page_tokens, host_capacity_pages, write_policy, seed)
        parts = _pinned if pin_running else _unpinned
        first, second, evicted_pages = parts(tree, requests, capacity_pages, *sizes)
    return Row(
        trace=trace.name,
        policy=policy_name,
        capacity_tokens=capacity_pages * trace.page_tokens,
        host_capacity_tokens=host_capacity_pages * trace.page_tokens,
        requests=first.requests + second.requests,
        prompt_tokens=first.prompt_tokens + second.prompt_tokens,
        device_hit_tokens=first.device_hit_tokens + second.device_hit_tokens,
        host_hit_tokens=first.host_hit_tokens + second.host_hit_tokens,
        evicted_tokens=None if evicted_pages is None else evicted_pages * trace.page_tokens,
        seed=seed,
        seconds=time.perf_counter() - started,
        halves=(_half(first), _half(second)),
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
    trims = entry.trims and config.trim_tokens and not is_lru
    return ReplayTree(
        make_named_policy(policy_name, config, seed),
        page_tokens,
        host_capacity_pages,
        write_policy,
        config.ghost_factor if entry.has_ghosts else 0,
        max(1, config.trim_tokens // page_tokens) if trims else None,
    )


def _half(counts: Counts) -> tuple[int, int]:
    return counts.prompt_tokens, counts.device_hit_tokens + counts.host_hit_tokens


def _counted(requests: Iterable[Request], on_progress: Progress) -> Iterator[Request]:
    number = 0
    for number, request in enumerate(requests, 1):
        yield request
        if number % _PROGRESS_REQUESTS == 0:
            on_progress(_PROGRESS_REQUESTS)
    on_progress(number % _PROGRESS_REQUESTS)


def _unpinned(
    tree: ReplayTree, requests: Iterator[Request], capacity_pages: int, num_warmup: int, num_first: int
) -> tuple[Counts, Counts, int]:
    """(counts of the two halves, device pages evicted in them)."""
    replay_unpinned(tree, islice(requests, num_warmup), capacity_pages, num_warmup)
    evicted_before = tree.num_evicted_pages["device"]
    first = replay_unpinned(tree, islice(requests, num_first), capacity_pages, 0)
    second = replay_unpinned(tree, requests, capacity_pages, 0)
    return first, second, tree.num_evicted_pages["device"] - evicted_before


def _pinned(
    tree: ReplayTree, requests: Iterator[Request], capacity_pages: int, num_warmup: int, num_first: int
) -> tuple[Counts, Counts, int]:
    """The same for one run that lasts: a request counts in the half in which it is admitted."""
    replay = PinnedReplay(tree, capacity_pages, num_warmup)
    evicted_before = 0
    first = Counts()

    def watched() -> Iterator[Request]:
        nonlocal evicted_before, first
        for number, request in enumerate(requests):
            if number == num_warmup:
                evicted_before = tree.num_evicted_pages["device"]
            if number == num_warmup + num_first:
                first = replace(replay.counts)
            yield request

    whole = replay.run(watched())
    second = Counts(
        whole.requests - first.requests,
        whole.prompt_tokens - first.prompt_tokens,
        whole.device_hit_tokens - first.device_hit_tokens,
        whole.host_hit_tokens - first.host_hit_tokens,
    )
    return first, second, tree.num_evicted_pages["device"] - evicted_before
