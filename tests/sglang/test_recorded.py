"""A server's record, replayed: random operations on SGLang's real cache give the same hits and the same victims again.

The log of `driver.py` runs on our tree core with `record_path` set, on the device alone and with a host tier under
each write policy; then the record alone drives the replay.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from sglang.test.kits.unified_radix_cache.config import CONFIGS
from sglang.test.kits.unified_radix_cache.unified_tree_core_inspector import UnifiedTreeCoreInspector

from radiximp.replay.recorded import Replayed, replay_record
from radiximp.replay.recorded_tree import RecordedTree
from radiximp.serving.recorder import OperationRecorder
from radiximp.serving.recording_core import RecordingTreeCore
from tests.sglang import kit_trees
from tests.sglang.driver import Driver, make_log
from tests.sglang.kit_trees import TREE_CORE_NAME, Variant

NUM_SEEDS = 10
NUM_STEPS = 300
WRITE_POLICIES = [None, "write_through", "write_through_selective", "write_back"]
LRU = {"half_life_s": 0}
# The kit's prompts are short: only with this setting are their leaves cut.
DEFAULT = {"trim_tokens": 1}
PAGED = next(cfg for cfg in CONFIGS if cfg.page_size == 16)


class RecordingInspector(RecordingTreeCore, UnifiedTreeCoreInspector):
    """The recording tree core with the kit's white-box questions on top."""


def record(
    path: Path, config: dict, seed: int, page_size: int = 1, host: str | None = None, num_steps: int = NUM_STEPS
) -> RecordingTreeCore:
    """Run one random log on a fresh cache; returns its tree core, with the record at `path` complete."""
    cfg = replace(CONFIGS[0] if page_size == 1 else PAGED, head_num=1, head_dim=8)
    variant = Variant("recorded", "importance", {**config, "record_path": str(path)}, TREE_CORE_NAME)
    with mock.patch.object(kit_trees, "ImportanceInspector", RecordingInspector):
        tree = kit_trees.build(cfg, variant)
    core = tree.cache.tree_core
    driver = Driver(tree)
    if host is not None:
        kit_trees.attach_host_tier(tree, host)
        tree.cache.write_through_threshold = 1 if host == "write_through" else 2
    try:
        for number, (name, arguments) in enumerate(make_log(cfg, seed, num_steps, has_host=host is not None)):
            # Requests that come in bursts and in pauses, as the server's clock would show them.
            core.observe_arrival(1e9 + 37.5 * (number // 5) ** 1.2 + number / 7)
            driver.apply(name, arguments)
        tree.cache.sanity_check()
    finally:
        kit_trees.detach_host_tier(tree)
        core.recorder.close()
    return core


def replayed_equal(path: Path, core: RecordingTreeCore) -> Replayed:
    """The replay of a record, checked against what the tree core counted itself."""
    found = replay_record(path)
    assert found.difference is None, found.verdict()
    assert found.victims == sum(core.num_evictions.values())
    assert left_in_replay(found.tree) == left_in_server(core)
    return found


def left_in_server(core: RecordingTreeCore) -> dict[int, tuple]:
    """Every node by its number: pages, tiers, and in which index of leaves it is."""
    return {
        node.number: (
            len(node.key) // core.page_size,
            not node.evicted,
            node.backuped,
            node in core.evictable_device_leaves,
            node in core.evictable_host_leaves,
        )
        for node in core._node_arena.values()
        if node is not core.root_node
    }


def left_in_replay(tree: RecordedTree) -> dict[int, tuple]:
    return {
        node.id: (
            len(node),
            node.is_on_device,
            node.is_on_host,
            node in tree.device_leaves,
            node in tree.host_leaves,
        )
        for node in tree.nodes()
    }


@pytest.mark.parametrize("host", WRITE_POLICIES, ids=str)
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("config", [LRU, DEFAULT], ids=["lru", "default"])
def test_the_replay_takes_the_servers_victims(tmp_path, config, page_size, host):
    found = []
    for seed in range(NUM_SEEDS):
        path = tmp_path / f"{seed}.jsonl.gz"
        found.append(replayed_equal(path, record(path, config, seed, page_size, host)))
    assert sum(one.victims for one in found) > 200
    assert all(one.hit_pages and one.lookups and one.inserts for one in found)
