"""The contract of an eviction policy: it ranks histories and never frees, copies or logs.

The tree owns structure, sizes, locks and residency; it reports uses, asks the policy for an index over
its leaves and evicts the first. The server and the replay drive the same policy object.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from radiximp.policy.history import NodeHistory

# Lower is evicted first.
Key = tuple[float, ...]

# The nodes that a request used, root first: each node's history and its tokens.
Path = Sequence[tuple[NodeHistory, int]]


class Leaf(Protocol):
    """What a policy may read of a tree node. Times are the tree's logical counter."""

    id: int
    parent: Leaf | None
    history: NodeHistory
    last_access_time: float
    creation_time: float
    hit_count: int
    priority: int


class Policy:
    """What a subclass leaves out does nothing; `key` and `new_index` it must define."""

    name: str

    def record_uses(self, path: Path, now_s: float, tick: int) -> None:
        """One request used the nodes of `path`; mutates their histories only.

        now_s: the request's arrival. tick: the logical time of the first node, one more for each next.
        """

    def record_end(self, path: Path, finish: str, output_tokens: int, now_s: float) -> None:
        """The request that used `path` is over, and the nodes are idle from `now_s` on.

        finish: why it ended ("tool_use", "end_turn", "length", or "" where unknown).
        """

    def record_warm(self, path: Path, now_s: float, tick: int) -> None:
        """The nodes of `path` were pre-warmed: they are here now, and nobody has asked for them.

        Neither a use nor a hit nor evidence of reuse; mutates their histories only.
        """

    def advance(self, now_s: float) -> None:
        """Time has come to `now_s`. Keys change here and in the calls above, never in between."""

    def note_capacity(self, num_tokens: int) -> None:
        """How many tokens the cache holds when it is full, all tiers together."""

    def restart(self, now_s: float) -> None:
        """The tree was emptied: what was idle in it says nothing of reuse any more."""

    def take_notices(self) -> list[str]:
        """What an operator should read in the log, each once; the policy itself never logs."""
        return []

    def stats(self) -> dict[str, Any]:
        """What people may want to know of the policy's state; plain JSON types."""
        return {}

    def forget(self) -> None:
        """Drop all that was learned beside the nodes' histories (the model's weights changed)."""

    def chance_within(self, history: NodeHistory, seconds: float) -> float:
        """How likely idle content is used again within so many seconds of the last `advance`; 0 where nothing is known."""
        return 0.0

    def key(self, leaf: Leaf) -> Key:
        """The leaf's place in the order as of the last `advance`."""
        raise NotImplementedError

    def new_index(self, prefix_of: Callable[[Any], tuple]) -> set:
        """An empty index over leaves, ordered by (*prefix, *key, id)."""
        raise NotImplementedError
