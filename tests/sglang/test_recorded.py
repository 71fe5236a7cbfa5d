"""A server's record, replayed: random operations on SGLang's real cache give the same hits and the same victims again.

The log of `driver.py` runs on our tree core with `record_path` set, on the device alone and with a host tier under
each write policy; then the record alone drives the replay.
"""

from __future__ import annotations

import gzip
import random
import re
from array import array
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import orjson
import pytest
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.test.kits.unified_radix_cache.config import CONFIGS
from sglang.test.kits.unified_radix_cache.unified_tree_core_inspector import UnifiedTreeCoreInspector

from radiximp.cli import main
from radiximp.replay.recorded import Replayed, replay_record
from radiximp.replay.recorded_tree import RecordedTree
from radiximp.serving.tree.core import ImportanceTreeCore
from radiximp.serving.tree.recorder import OperationRecorder
from radiximp.serving.tree.recording_core import RecordingTreeCore
from tests.sglang import kit_trees
from tests.sglang.builders import build_cache, key_of, request
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
    path: Path,
    config: dict,
    seed: int,
    page_size: int = 1,
    host: str | None = None,
    num_steps: int = NUM_STEPS,
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
            if number % 3 == 0:
                observe_somebody(core, random.Random(number))
        tree.cache.sanity_check()
    finally:
        kit_trees.detach_host_tier(tree)
        core.recorder.close()
    return core


def observe_somebody(core: RecordingTreeCore, rng: random.Random) -> None:
    """A query attends to one of the paths in the tree, here more and there less."""
    node = rng.choice(list(core._node_arena.values()))
    pieces = []
    while node is not core.root_node:
        pieces.append(node.key)
        node = node.parent
    if pieces:
        tokens = array("q", [token for key in reversed(pieces) for token in key.raw_token_ids()])
        key = RadixKey(tokens, pieces[0].extra_key, cache_salt=pieces[0].cache_salt)
        num_pages = len(tokens) // core.page_size
        core.observe(key, [rng.choice([0.1, 1.0, 6.0, float("nan")]) for _ in range(num_pages)])


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


# ---- the comparison can fail ----


def rewritten(path: Path, change) -> Path:
    """A copy of the record whose lines went through `change`, a function of the list of them."""
    lines = [orjson.loads(line) for line in gzip.open(path)]
    change(lines)
    copy = path.with_name("changed.jsonl")
    copy.write_bytes(b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines))
    return copy


def first(lines: list, name: str, at: int = 0) -> int:
    """Where the operation of that name is for the `at`th time."""
    return [number for number, line in enumerate(lines) if isinstance(line, list) and line[0] == name][at]


def another_victim(lines):
    victims = [line for line in lines[1:] if line[0] == "victim" and line[2] is not None]
    victims[7][2] += 1


def a_longer_victim(lines):
    lines[first(lines, "host_victim", 3)][2] += 1


def a_larger_hit(lines):
    lines[first(lines, "match", 40)][-2] += 1


def a_lost_use(lines):
    del lines[first(lines, "use", 20)]


def a_lost_lock(lines):
    del lines[first(lines, "lock", 30)]


def another_configuration(lines):
    lines[0]["config"]["trim_tokens"] = 0


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("record") / "ops.jsonl.gz"
    record(path, DEFAULT, seed=3, host="write_through")
    return path


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (another_victim, r"\(victim\): device victim \(node, pages\): served \d+, \d+, replayed \d+, \d+"),
        (a_longer_victim, r"\(host_victim\): host victim"),
        (a_larger_hit, r"\(match\): pages found \(device, both tiers\): served \d+, \d+, replayed"),
        (a_lost_use, "served .* replayed"),
        (a_lost_lock, "served .* replayed"),
        (another_configuration, "served .* replayed"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_changed_record_is_told(recorded, change, difference, capsys):
    changed = rewritten(recorded, change)
    assert main(["replay", str(recorded)]) == 0
    assert " victims, all equal (" in capsys.readouterr().out
    assert main(["replay", str(changed)]) == 1
    said = capsys.readouterr().out
    assert said.startswith(f"{changed}: DIFFERENT at line ")
    assert re.search(difference, said)


def test_a_record_that_breaks_off_is_replayed_to_its_last_whole_line(recorded):
    whole = replay_record(recorded)
    half = recorded.with_name("half.jsonl.gz")
    half.write_bytes(recorded.read_bytes()[: recorded.stat().st_size // 2])
    found = replay_record(half)
    assert found.difference is None and 0 < found.operations < whole.operations


def test_a_record_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(OperationRecorder, "max_bytes", 30_000)
    path = tmp_path / "ops.jsonl"
    record(path, DEFAULT, seed=0)
    found = replay_record(path)
    assert path.stat().st_size < 200_000 and found.difference is None
    assert found.verdict().endswith("; the record ends early: it has reached 0 MiB")


def test_what_cannot_be_equal_is_refused_in_one_line(tmp_path, capsys):
    path = tmp_path / "ops.jsonl"
    cfg = next(cfg for cfg in CONFIGS if ComponentType.SWA in cfg.components)
    config = {"record_path": str(path)}
    with mock.patch.object(kit_trees, "ImportanceInspector", RecordingInspector):
        kit_trees.build(cfg, Variant("recorded", "importance", config, TREE_CORE_NAME))
    assert main(["replay", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "SWA" in said and "SGLang's own order, which no replay knows" in said


def test_pins_end_a_record(tmp_path):
    path = tmp_path / "ops.jsonl"
    cache = build_cache(64, config={"record_path": str(path)})
    request(cache, range(20))
    cache.tree_core.pin(key_of(range(10)))
    request(cache, range(100, 120))
    found = replay_record(path)
    assert found.inserts == 1 and found.stopped == "pins are not recorded"


def test_off_is_the_plain_tree_core():
    assert type(build_cache(64).tree_core) is ImportanceTreeCore


def test_prompts_do_not_stand_in_the_record(tmp_path):
    path = tmp_path / "ops.jsonl"
    cache = build_cache(512, config={"record_path": str(path)})
    request(cache, range(300, 500), extra_key="lora-name", cache_salt="tenant-name")
    cache.tree_core.recorder.close()
    text = path.read_bytes()
    assert b"tenant-name" not in text and b"lora-name" not in text
    lines = [line for line in map(orjson.loads, text.splitlines()[1:]) if line[0] in ("match", "insert")]
    ids = np.concatenate([np.frombuffer(b64decode(line[3]), np.uint32) for line in lines])
    assert len(ids) and not set(ids.tolist()) & set(range(300, 500))


def test_a_full_disk_ends_the_record_and_not_the_server(caplog):
    recorder = OperationRecorder("/dev/full", {"format": "radiximp operations"}, 1)
    assert not recorder.is_open and "cannot write /dev/full" in caplog.text
    recorder.note("at", 1.0)
    recorder.stop("too late")
    recorder.close()
