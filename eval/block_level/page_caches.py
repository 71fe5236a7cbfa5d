"""Caches of pages against what decode steps ask for. Pure numpy; knows nothing of models.

A step asks for its top pages. What is not there is fetched, and the cache is then cut to its budget; pages asked for by the step
stay. A turn begins with a row of its own: its prompt's pages are written, and the prompt's last queries are observed. All caches of
a family differ only in how they rank; `rank` is higher for what is kept longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BUDGETS = (0.05, 0.1, 0.2, 0.4)
STEP_SHARE, TURN_SHARE = 0.05, 0.1
MIN_WANTED = 4
# Ends of ranges of context, in tokens; a step counts in the first whose end it is below.
CONTEXTS = (2048, 4096, 8193)
# Pages written by one row are used in their order within it; a tie between ranks goes to what was used last.
_WITHIN_ROW, _TIE = 1e-4, 1e-8


@dataclass(frozen=True)
class Policy:
    """kind: lru, lfu, slru, role, belady, ema (parameter: alpha) or top (parameter: W, share of the last W observations in the top tenth).

    source: whose scores it sees. feed: observations that it takes, "steps" of decoding, "prompts" at a turn's start, or "both".
    """

    name: str
    kind: str
    parameter: float = 0.0
    source: str = "softmax"
    feed: str = "both"


ALPHAS, WINDOWS = (0.02, 0.1, 0.3, 1.0), (8, 32, 128)
BASELINES = tuple(Policy(kind, kind) for kind in ("lru", "lfu", "slru", "role"))
BELADY = Policy("belady", "belady")
SWEPT = (
    *(Policy(f"ema {alpha:g}", "ema", alpha) for alpha in ALPHAS),
    *(Policy(f"top {window}", "top", window) for window in WINDOWS),
    *(Policy(f"ema {alpha:g}, past turns", "ema", alpha, feed="steps") for alpha in (0.02, 0.1)),
    *(Policy(f"ema {alpha:g}, prompts", "ema", alpha, feed="prompts") for alpha in (0.5, 1.0)),
)
POLICIES = (*BASELINES, *SWEPT, BELADY)
# The same as seen by scorers that do without the attention's mass (H4).
POST_HOC = tuple(
    Policy(f"{policy.name}, {source}", policy.kind, policy.parameter, source, policy.feed)
    for policy in SWEPT
    for source in ("quest", "blast")
)


@dataclass
class Rows:
    """One conversation: rows are turn starts and decode steps in order.

    is_start, turn: [num_rows]. num_pages: [num_rows] pages that may be asked for. scores[source]: [num_rows, all pages] >= 0, what the row observes.
    truth: [num_rows, all pages] what decides what a step wants. role_rank: [all pages], higher is kept longer by `role`.
    """

    is_start: np.ndarray
    turn: np.ndarray
    num_pages: np.ndarray
    scores: dict[str, np.ndarray]
    truth: np.ndarray
    role_rank: np.ndarray


@dataclass
class Hits:
    """wanted: [contexts]; found[policy]: [contexts, budgets] of them."""

    wanted: np.ndarray
    found: dict[str, np.ndarray]


def top(values: np.ndarray, number: int) -> np.ndarray:
    """Indices of the largest values, ties to the later page."""
    return np.argsort(values, kind="stable")[::-1][:number]


def num_wanted(num_pages: int, share: float) -> int:
    """At least four pages, or all that there are."""
    return min(num_pages, max(MIN_WANTED, round(share * num_pages)))


def budget_pages(num_pages: int, share: float) -> int:
    """Never below what one step asks for."""
    return max(num_wanted(num_pages, STEP_SHARE), round(share * num_pages))


def wanted_by_steps(rows: Rows) -> np.ndarray:
    """[num_rows, pages] bool; none at a turn's start."""
    wanted = np.zeros(rows.truth.shape, bool)
    for row in np.flatnonzero(~rows.is_start):
        pages = rows.num_pages[row]
        wanted[row, top(rows.truth[row, :pages], num_wanted(pages, STEP_SHARE))] = True
    return wanted


def next_uses(wanted: np.ndarray) -> np.ndarray:
    """[num_rows, pages] the next row after this one that wants the page; the number of rows if none does."""
    found = np.full(wanted.shape, len(wanted), np.int32)
    for row in range(len(wanted) - 2, -1, -1):
        found[row] = np.where(wanted[row + 1], row + 1, found[row + 1])
    return found


class Ranks:
    """What every policy knows after each row; ranks() is [num_policies, pages]."""

    def __init__(self, policies: Sequence[Policy], rows: Rows, wanted: np.ndarray) -> None:
        num_pages = rows.truth.shape[1]
        self._policies, self._rows, self._next = policies, rows, next_uses(wanted)
        self.last_use, self.num_uses = np.full(num_pages, -1.0), np.zeros(num_pages)
        self._state = {p.name: np.ones(num_pages) for p in policies if p.kind == "ema"}
        self._seen = {p.name: np.zeros(num_pages, bool) for p in policies if p.kind == "ema"}
        self._history = {p.name: [] for p in policies if p.kind == "top"}

    def note(self, row: int, first_new: int, wanted: np.ndarray) -> None:
        """The row happened: pages from first_new on were written, the wanted ones used, scores observed."""
        pages = self._rows.num_pages[row]
        self.last_use[first_new:pages] = row + np.arange(first_new, pages) * _WITHIN_ROW
        self.last_use[wanted] = row + 0.5
        self.num_uses += wanted
        is_start = self._rows.is_start[row]
        for policy in self._policies:
            if policy.feed == ("steps" if is_start else "prompts"):
                continue
            if policy.kind == "ema":
                self._fold(policy, self._rows.scores[policy.source][row, :pages], pages)
            elif policy.kind == "top":
                kept = self._history[policy.name]
                kept.append(top(self._rows.scores[policy.source][row, :pages], num_wanted(pages, TURN_SHARE)))
                del kept[: -int(policy.parameter)]

    def _fold(self, policy: Policy, scores: np.ndarray, pages: int) -> None:
        state, seen = self._state[policy.name], self._seen[policy.name]
        known = ~np.isnan(scores)
        alpha = np.where(seen[:pages], policy.parameter, 1.0)
        state[:pages] = np.where(
            known, state[:pages] + alpha * (np.nan_to_num(scores) - state[:pages]), state[:pages]
        )
        seen[:pages] |= known

    def ranks(self, row: int) -> np.ndarray:
        """Ties go to what was used last."""
        recency = self.last_use * _TIE
        return np.stack([self._rank(policy, row) for policy in self._policies]) + recency

    def _rank(self, policy: Policy, row: int) -> np.ndarray:
        if policy.kind == "lru":
            return self.last_use
        if policy.kind == "lfu":
            return self.num_uses
        if policy.kind == "slru":
            return self.last_use + 1e6 * (self.num_uses >= 2)
        if policy.kind == "role":
            return self.last_use + 1e6 * self._rows.role_rank
        if policy.kind == "belady":
            return -self._next[row].astype(float)
        if policy.kind == "ema":
            return self._state[policy.name]
        share = np.zeros(len(self.last_use))
        for pages in self._history[policy.name]:
            share[pages] += 1
        return share


def replayed(rows: Rows, policies: Sequence[Policy]) -> tuple[Hits, Hits]:
    """(at every step, at every turn's start but the first).

    At a turn: of the top tenth of the pages by what its steps attend to together, those that would be resident when decoding
    starts, in a cache that had room for all before: what is left are the highest ranks.
    """
    wanted, num_pages = wanted_by_steps(rows), rows.truth.shape[1]
    ranks = Ranks(policies, rows, wanted)
    resident = np.zeros((len(BUDGETS), len(policies), num_pages), bool)
    steps, turns = _none(policies), _none(policies)
    before = 0
    for row in range(len(wanted)):
        pages = rows.num_pages[row]
        resident[:, :, before:pages] = True
        context = int(np.searchsorted(CONTEXTS, pages * 16, side="right"))
        steps.wanted[context] += wanted[row].sum()
        found = resident[:, :, wanted[row]].sum(-1)
        resident[:, :, wanted[row]] = True
        ranks.note(row, before, wanted[row])
        before = max(before, pages)
        now = ranks.ranks(row)
        for i, policy in enumerate(policies):
            steps.found[policy.name][context] += found[:, i]
        for b, share in enumerate(BUDGETS):
            _cut(resident[b], now, wanted[row], budget_pages(pages, share))
        if rows.is_start[row] and rows.turn[row] > 0:
            _count_turn(rows, row, policies, now, turns, context)
    return steps, turns


def _none(policies: Sequence[Policy]) -> Hits:
    shape = (len(CONTEXTS), len(BUDGETS))
    return Hits(np.zeros(len(CONTEXTS), int), {policy.name: np.zeros(shape, int) for policy in policies})


def _cut(resident: np.ndarray, ranks: np.ndarray, wanted: np.ndarray, budget: int) -> None:
    """Keep the budget's highest ranks of each policy, and all that is wanted."""
    key = np.where(resident, ranks, -np.inf)
    key[:, wanted] = np.inf
    if resident.shape[1] <= budget:
        return
    out = np.argpartition(-key, budget - 1, axis=1)[:, budget:]
    np.put_along_axis(resident, out, False, axis=1)


def _count_turn(
    rows: Rows, row: int, policies: Sequence[Policy], ranks: np.ndarray, turns: Hits, context: int
) -> None:
    pages = rows.num_pages[row]
    steps = np.flatnonzero((rows.turn == rows.turn[row]) & ~rows.is_start)
    if not len(steps):
        return
    together = np.nan_to_num(rows.truth[steps, :pages]).sum(0)
    target = np.zeros(pages, bool)
    target[top(together, num_wanted(pages, TURN_SHARE))] = True
    turns.wanted[context] += target.sum()
    for i, policy in enumerate(policies):
        values = together if policy.kind == "belady" else ranks[i, :pages]
        order = top(values, pages)
        for b, share in enumerate(BUDGETS):
            turns.found[policy.name][context, b] += target[order[: budget_pages(pages, share)]].sum()
