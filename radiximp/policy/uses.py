"""One use of a path, from a request's point of view: which of its nodes count, and that the request is over."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from radiximp.policy.base import Path, Policy
from radiximp.policy.history import NodeHistory


def inherit_gap(parent: NodeHistory, history: NodeHistory) -> None:
    """Before a use is recorded, root first: a new turn has the usual gap of what it continues."""
    if history.follows and history.num_queries == 0:
        history.gap_log2_s = parent.gap_log2_s


def record_use(
    policy: Policy,
    path: Path,
    query: int,
    now_s: float,
    counted_tokens: int,
    session_hash: int | None,
    end: tuple[str, int] | None,
    tick: int,
    on_return: Callable[[float, int], None] = lambda gap_s, num_tokens: None,
) -> int:
    """Report the use of `path` to the policy; returns the logical time after it.

    A node counts once per `query`, and not at all where it ends within the first `counted_tokens`, which the
    request used before. end: (finish kind, output tokens) of a request that is over, None while it runs.
    on_return: told of each node that was used before how long it lay idle, and its tokens.
    """
    for (parent, _), (history, _) in pairwise(path):
        inherit_gap(parent, history)
    used, position = [], 0
    for history, num_tokens in path:
        position += num_tokens
        if position <= counted_tokens or history.last_query == query:
            history.is_ghost = False  # a retracted request had it before, and brought it back
            continue
        history.last_query = query
        history.note_spell(now_s)
        if session_hash is not None:
            history.add_session(session_hash)
        if history.num_queries:
            on_return(now_s - history.last_use_s, num_tokens)
        used.append((history, num_tokens))
    if used:
        policy.record_uses(used, now_s, tick + 1)
    if end is not None:
        policy.record_end(path, *end, now_s)
    return tick + len(used)
