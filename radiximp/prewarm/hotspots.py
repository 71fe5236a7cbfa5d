"""Structural hotspots: prompt prefixes that many requests and many sessions share, now and not in one burst.

A pure function of the histories on a prefix tree: it reads, and changes nothing. Only additions, multiplications and
divisions of numbers that are the same on every rank decide, so ranks agree to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from radiximp.policy.history import NodeHistory

# What any hotspot has at least: requests, stretches of a second in which they came, sessions.
MIN_QUERIES = 3
MIN_SPELLS = 3
MIN_SESSIONS = 3
# A hotspot within another's prefix says nothing new unless it adds this much.
_MIN_OWN_TOKENS = 16
# Uses within a second beyond this many say nothing more of the next hour.
_MAX_USES_PER_SPELL = 8
# Density counts within these bounds: attention marks unusual text as well as instructions.
_LEAST_DENSITY, _MOST_DENSITY = 0.5, 2.0


@dataclass(frozen=True, slots=True)
class Hotspot:
    """The prefix from the root to `node`, the last of a run of nodes that most of the same requests went through.

    num_tokens: of the whole prefix; own_tokens: beyond the hotspot that it branches from. importance: attention
    density, average of its own tokens. num_sessions: sessions that carry an id, or else distinct continuations.
    """

    node: Any
    num_tokens: int
    own_tokens: int
    importance: float
    num_queries: int
    num_sessions: int
    last_use_s: float
    score: float


@dataclass(frozen=True, slots=True)
class _Run:
    """A path that ends with `node`: its tokens, those since the last hotspot on it, and their sum of densities."""

    node: Any
    num_tokens: int
    own_tokens: int
    mass: float

    def to(self, child: Any, density: float) -> _Run:
        num_tokens = len(child.key)
        mass = self.mass + density * num_tokens
        return _Run(child, self.num_tokens + num_tokens, self.own_tokens + num_tokens, mass)


def find_hotspots(
    nodes: Iterable[Any], history_of: Callable[[Any], NodeHistory], now_s: float, half_life_s: float
) -> list[Hotspot]:
    """The hotspots of one namespace, highest score first, ties by tokens and then by the id of the node.

    nodes: those below the root; each has `key` (its length in tokens), `children` (a mapping to nodes) and `id`.
    half_life_s: how long after the last use a hotspot counts half. O(nodes that three requests used, and their children).
    """
    found: list[Hotspot] = []
    start = _Run(None, 0, 0, 0.0)
    waiting = [start.to(node, history_of(node).density) for node in nodes if _is_busy(history_of(node))]
    while waiting:
        run = waiting.pop()
        children = [child for child in run.node.children.values() if _is_busy(history_of(child))]
        following = _following(run.node, children, history_of)
        hotspot = None if following is not None else _hotspot(run, history_of(run.node), now_s, half_life_s)
        if hotspot is not None:
            found.append(hotspot)
        is_covered = hotspot is not None or num_sessions(history_of(run.node)) >= MIN_SESSIONS
        branch = _Run(run.node, run.num_tokens, 0, 0.0) if is_covered else run
        for child in children:
            # Where most requests go on together, the prefix has not ended; its hotspot covers what the others share.
            waiting.append((run if child is following else branch).to(child, history_of(child).density))
    found.sort(key=rank)
    return found


def rank(hotspot: Hotspot) -> tuple:
    """Sorts hotspots, also of several namespaces, most valuable first; a total order."""
    return (-hotspot.score, -hotspot.num_tokens, hotspot.node.id)


def _is_busy(history: NodeHistory) -> bool:
    """Can the node, or one below it, be a hotspot? Falls along a path."""
    return history.num_queries >= MIN_QUERIES and history.num_spells >= MIN_SPELLS


def _following(node: Any, children: list[Any], history_of: Callable[[Any], NodeHistory]) -> Any | None:
    """The child that more than half of the node's requests went on to, if it is shared by sessions as the node is."""
    for child in children:
        history = history_of(child)
        if 2 * history.num_queries > history_of(node).num_queries and (
            num_sessions(history) >= MIN_SESSIONS or num_sessions(history_of(node)) < MIN_SESSIONS
        ):
            return child
    return None


def num_sessions(history: NodeHistory) -> int:
    """Distinct sessions that used a node. Few clients say which they are: then what each went on with tells."""
    return max(history.num_sessions, history.num_branches)


def _hotspot(run: _Run, history: NodeHistory, now_s: float, half_life_s: float) -> Hotspot | None:
    if num_sessions(history) < MIN_SESSIONS or run.own_tokens < _MIN_OWN_TOKENS:
        return None
    importance = run.mass / run.own_tokens
    uses = min(history.num_queries, _MAX_USES_PER_SPELL * history.num_spells)
    age_s = max(now_s - history.last_use_s, 0.0)
    score = uses * min(max(importance, _LEAST_DENSITY), _MOST_DENSITY) / (1 + age_s / half_life_s)
    return Hotspot(
        run.node,
        run.num_tokens,
        run.own_tokens,
        importance,
        history.num_queries,
        num_sessions(history),
        history.last_use_s,
        score,
    )
