"""The hotspots' file on disk: who may read it, several writers, and what becomes of a file that does not fit."""

from __future__ import annotations

import logging
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from radiximp.config import PolicyConfig
from radiximp.prewarm import manifest
from radiximp.serving.api.hotspots_file import HotspotsFile
from tests.unit.test_manifest import MINE, entry


def opened(path, fingerprint=MINE) -> HotspotsFile:
    """One server's file, as after its start; nobody asks it of a scheduler here."""
    file = HotspotsFile(None, PolicyConfig(hotspots_file=str(path)), None)
    file._fingerprint = fingerprint
    return file


def test_only_its_owner_may_read_it_also_where_it_was_open_before(tmp_path):
    path = tmp_path / "hotspots.json"
    opened(path)._merge([entry([1])])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    opened(path)._merge([entry([2])])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(tmp_path.iterdir()) == [path]


def test_many_servers_that_write_at_once_lose_nothing(tmp_path):
    path = tmp_path / "hotspots.json"
    servers = [opened(path) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for turn in range(5):
            list(
                pool.map(
                    lambda number, turn=turn: servers[number]._merge([entry([number, turn, 7], seen_s=2e9)]),
                    range(8),
                )
            )
    assert len(opened(path)._load()) == 40


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"{", "expected the JSON that radiximp writes"),
        (
            manifest.dump([entry([1])], {**MINE, "model": "another"}),
            "made with model 'another', this server has 'm'",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_refused_in_one_line_and_kept_aside(tmp_path, caplog, content, reason):
    path = tmp_path / "hotspots.json"
    path.write_bytes(content)
    file = opened(path)
    with caplog.at_level(logging.WARNING):
        assert file._load() == []
    (refused,) = caplog.records
    assert f"{path} is not used, starting cold: {reason}" in refused.getMessage()
    file._merge([entry([5], seen_s=2e9)])
    assert (tmp_path / "hotspots.json.refused").read_bytes() == content
    assert [found.input_ids for found in file._load()] == [[5]]


def test_no_file_is_a_cold_start_without_a_word(tmp_path, caplog):
    assert opened(tmp_path / "none.json")._load() == [] and not caplog.records
