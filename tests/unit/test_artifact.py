"""The cached folder of generated files: complete or absent, verified, rebuilt, safe against kill -9."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from radiximp.serving import artifact

SOURCE = {"package": "something 1.0", "recipe": 1}


class Build:
    """Writes two files and counts its calls."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, folder: Path) -> None:
        self.num_calls += 1
        (folder / "weights").write_bytes(b"w" * 5000)
        (folder / "config.json").write_text("{}")


def ensure(root: Path, build, reports: list[str] | None = None, source=SOURCE) -> Path:
    report = reports.append if reports is not None else lambda line: None
    return artifact.ensure(root, "thing", source, build, report)


def test_is_built_once_and_verified_later(tmp_path: Path) -> None:
    build = Build()
    folder = ensure(tmp_path, build)
    assert ensure(tmp_path, build) == folder == tmp_path / "thing"
    assert build.num_calls == 1
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "manifest.json", "weights"]
    assert artifact.find_fault(folder, SOURCE) is None


def damage_byte(folder: Path) -> None:
    weights = bytearray((folder / "weights").read_bytes())
    weights[2500] ^= 1
    (folder / "weights").write_bytes(weights)


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (damage_byte, "weights is damaged (checksum differs)"),
        (lambda folder: (folder / "weights").write_bytes(b"w" * 4999), "weights is damaged"),
        (lambda folder: (folder / "config.json").unlink(), "config.json cannot be read"),
        (lambda folder: (folder / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "manifest.json is unreadable"),
        (lambda folder: (folder / "manifest.json").write_text("[]"), "manifest.json is unreadable"),
    ],
)
def test_damage_is_named_in_one_line_and_repaired(tmp_path: Path, damage, fault: str) -> None:
    build, reports = Build(), []
    folder = ensure(tmp_path, build)
    damage(folder)
    ensure(tmp_path, build, reports)
    assert build.num_calls == 2
    assert len(reports) == 1 and fault in reports[0] and reports[0].endswith("building it again")
    assert artifact.find_fault(folder, SOURCE) is None
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["thing"]


def test_another_source_means_a_rebuild(tmp_path: Path) -> None:
    build = Build()
    ensure(tmp_path, build)
    ensure(tmp_path, build, source={**SOURCE, "recipe": 2})
    assert build.num_calls == 2


def test_a_failing_build_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        ensure(tmp_path, fail)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


def _build_and_stop(root: Path, reached) -> None:
    def build(folder: Path) -> None:
        (folder / "weights").write_bytes(b"half")
        reached.set()
        signal.pause()

    ensure(root, build)


def test_kill_during_a_build_leaves_no_folder_and_no_lock(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    reached = context.Event()
    builder = context.Process(target=_build_and_stop, args=(tmp_path, reached))
    builder.start()
    assert reached.wait(60)
    os.kill(builder.pid, signal.SIGKILL)
    builder.join()
    assert not (tmp_path / "thing").exists()

    build = Build()
    ensure(tmp_path, build)
    assert build.num_calls == 1
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["thing"]


def _build_logged(root: Path, barrier) -> None:
    def build(folder: Path) -> None:
        with (root / "calls").open("a") as calls:
            calls.write("x")
        Build()(folder)

    barrier.wait()
    ensure(root, build)


def test_processes_that_start_together_build_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    processes = [context.Process(target=_build_logged, args=(tmp_path, barrier)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert (tmp_path / "calls").read_text() == "x"


@pytest.mark.parametrize("root", ["/proc/radiximp", "/dev/null/radiximp"])
def test_unusable_cache_folder_is_one_line(root: str) -> None:
    with pytest.raises(artifact.ArtifactError) as caught:
        ensure(Path(root), Build())
    message = str(caught.value)
    assert message.startswith(f"cache folder {root} cannot be used") and "RADIXIMP_CACHE" in message
    assert "\n" not in message


def test_cache_root_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("RADIXIMP_CACHE", raising=False)
    assert artifact.cache_root() == tmp_path / "home/.cache/radiximp"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert artifact.cache_root() == tmp_path / "xdg/radiximp"
    monkeypatch.setenv("RADIXIMP_CACHE", str(tmp_path / "own"))
    assert artifact.cache_root() == tmp_path / "own"


def test_manifest_lists_every_file(tmp_path: Path) -> None:
    folder = ensure(tmp_path, Build())
    manifest = json.loads((folder / "manifest.json").read_text())
    assert set(manifest["sha256"]) == {"weights", "config.json"}
    assert manifest["source"] == SOURCE
