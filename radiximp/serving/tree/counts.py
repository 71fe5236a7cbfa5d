"""What a tree core counts for people: tokens that leave a tier and tokens that are wanted again.

Nothing here ranks or decides. Where a node leaves is SGLang's code; each way out is counted as it is taken.
"""

from __future__ import annotations

from collections.abc import Sequence

from sglang.srt.disaggregation.kv_events import StorageMedium

from radiximp.policy.history import NodeHistory
from radiximp.serving.metrics.tally import CALLERS, EVICTIONS, TIERS


class TreeCounts:
    """Mixin of `ImportanceTreeCore`; O(1) per call."""

    @property
    def num_nodes(self) -> int:
        """Nodes with KV on some tier."""
        return len(self._node_arena) - 1

    def note_wanted(self, ghosts: Sequence[tuple[int, NodeHistory]]) -> None:
        """Content that had left the tree came in again; ghosts: (end, history) of its pieces."""
        if ghosts:
            self.tally.wanted_tokens += ghosts[-1][0]

    def _demote(self, node, *args, **kwargs) -> None:
        self.tally.evicted_tokens["device", "demoted"] += len(node.key)
        super()._demote(node, *args, **kwargs)

    def _release_all_component_layers(self, node, medium, *args, **kwargs) -> None:
        tier = "host" if medium == StorageMedium.CPU else "device"
        self.tally.evicted_tokens[tier, "dropped"] += len(node.key)
        super()._release_all_component_layers(node, medium, *args, **kwargs)

    def _evict_host_leaf(self, node, *args, **kwargs) -> None:
        self.tally.evicted_tokens["host", "dropped"] += len(node.key)
        super()._evict_host_leaf(node, *args, **kwargs)

    def _release_full_host_duplicate(self, node, *args, **kwargs) -> None:
        self.tally.evicted_tokens["host", "duplicate"] += len(node.key)
        super()._release_full_host_duplicate(node, *args, **kwargs)

    def counts(self) -> dict:
        """For `/radiximp/stats`: totals since the start, and the what-if curve."""
        tally = self.tally
        return {
            "requests": {caller: tally.requests[caller] for caller in CALLERS},
            "prompt_tokens": {caller: tally.prompt_tokens[caller] for caller in CALLERS},
            "hit_tokens": {
                caller: {tier: tally.hit_tokens[tier, caller] for tier in TIERS} for caller in CALLERS
            },
            "left_tokens": {
                f"{tier}_{reason}": tally.evicted_tokens[tier, reason] for tier, reason in EVICTIONS
            },
            "regret_tokens": tally.wanted_tokens,
            "policy_s": dict(tally.phase_s),
            "what_if": self.what_if.describe(),
        }
