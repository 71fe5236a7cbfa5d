"""The contract of an eviction policy: it ranks histories and never frees, copies or logs.

The tree owns structure, sizes, locks and residency; it asks the policy for a key and evicts the
unlocked leaf whose key is lowest. The server and any replay drive the same policy object.
"""

from __future__ import annotations

from typing import Protocol

from radiximp.policy.history import NodeHistory

# Lower is evicted first. A key may not depend on the current time: it changes only when the tree
# reports a change of that node, so an ordered index stays exact without rescoring everything.
Key = tuple[float, ...]


class Policy(Protocol):
    name: str

    def record_use(self, history: NodeHistory, now_s: float, tick: int) -> None:
        """Account one request's use of a node at `now_s` seconds; mutates `history` only."""

    def key(self, history: NodeHistory, last_access_time: float) -> Key:
        """The node's place in the order. `last_access_time` is SGLang's logical counter."""
