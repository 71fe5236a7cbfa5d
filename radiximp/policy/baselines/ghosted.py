"""SGLang's lfu and slru with one change: uses count from before an eviction too, as ghosts remember them."""

from __future__ import annotations

from radiximp.policy.base import Key, Leaf
from radiximp.policy.baselines.ranked import RankedPolicy

_PROTECTED_QUERIES = 2


class GhostLFU(RankedPolicy):
    """Least uses first, then least recent."""

    name = "lfu-ghost"

    def key(self, leaf: Leaf) -> Key:
        """(uses ever, last access)."""
        return (leaf.history.num_queries, leaf.last_access_time)


class GhostSLRU(RankedPolicy):
    """What was used once before what was used again, then least recent."""

    name = "slru-ghost"

    def key(self, leaf: Leaf) -> Key:
        """(whether it was used again, last access)."""
        return (leaf.history.num_queries >= _PROTECTED_QUERIES, leaf.last_access_time)
