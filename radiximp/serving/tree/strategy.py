"""The object SGLang asks for priorities; refuses to exist outside our tree core.

SGLang swallows a plugin's exceptions. If a hook of ours did not take, the stock tree would build
this strategy, and a priority without annotations would be a silent LRU. So it raises instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sglang.srt.mem_cache.evict_policy import EvictionStrategy

from radiximp.config import PolicyConfig
from radiximp.policy.base import Key
from radiximp.policy.registry import make_policy

POLICY_NAME = "importance"

_builders = 0


@contextlib.contextmanager
def building_tree_core() -> Iterator[None]:
    """Marks that an `ImportanceTreeCore` is building its strategy."""
    global _builders
    _builders += 1
    try:
        yield
    finally:
        _builders -= 1


class ImportanceStrategy(EvictionStrategy):
    """SGLang's seam around the policy object; `get_priority` is lower for earlier victims."""

    def __init__(self, **config: object) -> None:
        if not _builders:
            raise RuntimeError(
                f"--radix-eviction-policy {POLICY_NAME} reached a tree core that is not radiximp's: the plugin is "
                "only half in place, or this cache type is unsupported (it needs the unified radix cache)"
            )
        self.policy = make_policy(PolicyConfig.from_mapping(config))
        self.num_calls = 0

    def get_priority(self, node) -> Key:
        """The policy's key of `node` (an annotated tree node)."""
        self.num_calls += 1
        return self.policy.key(node)
