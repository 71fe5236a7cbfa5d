"""The real series on a copy of the installed SGLang's files: the installed ones are only read."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from radiximp.patching import SGLANG_VERSION, Installation, Patch, load_series, patch_directory

SERIES = load_series(patch_directory())
CHECKS = ("register_eviction_policy", "cpu_host_buffers", "cpu_direct_copies", "node_split_hook")
PROGRAM = Path(__file__).with_name("patched_modules.py")


def copy_site(target: Path) -> Path:
    """A site-packages with just the files the series changes, as released, and SGLang's metadata."""
    distribution = importlib.metadata.distribution("sglang")
    assert distribution.version == SGLANG_VERSION
    info = target / f"sglang-{SGLANG_VERSION}.dist-info"
    info.mkdir(parents=True)
    for name in ("METADATA", "RECORD"):
        (info / name).write_text(distribution.read_text(name) or "")
    for path in {path for patch in SERIES for path in patch.changes}:
        copy = target / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(str(distribution.locate_file(path))), copy)
    installation = Installation(SERIES, target)
    if any(status.state != "not applied" for status in installation.check()):
        installation.revert()  # whoever runs the tests may have the patches applied
    return target


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return copy_site(tmp_path / "site-packages")


def snapshot(site: Path) -> dict[str, bytes]:
    return {str(p.relative_to(site)): p.read_bytes() for p in sorted(site.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("patch", SERIES, ids=lambda patch: patch.name)
def test_each_patch_goes_in_alone_compiles_and_comes_out(site: Path, patch: Patch) -> None:
    before = snapshot(site)
    statuses = Installation(SERIES, site).apply(patch.number)
    assert [s.state for s in statuses if s.patch == patch] == ["applied"]
    assert {s.state for s in statuses if s.patch != patch} == {"not applied"}
    after = snapshot(site)
    assert {path for path in after if after[path] != before.get(path)} == set(patch.changes)
    for path in patch.changes:
        compile(after[path], path, "exec")
    Installation(SERIES, site).revert(patch.number)
    assert snapshot(site) == before


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_git_makes_the_same_files(site: Path, tmp_path: Path) -> None:
    """Upstream's maintainers would use git: both must understand the series alike."""
    by_git = tmp_path / "by-git" / "python"
    shutil.copytree(site, by_git)
    for path in sorted(patch_directory().glob("*.patch")):
        environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(tmp_path)}
        subprocess.run(["git", "apply", path.resolve()], cwd=by_git.parent, check=True, env=environment)
    Installation(SERIES, site).apply()
    assert snapshot(site) == snapshot(by_git)


def run_checks(site: Path) -> dict[str, str]:
    """Check -> "ok", "skipped: ..." or "failed: ..." with SGLang's modules from `site`, without plugins."""
    environment = os.environ | {"SGLANG_PLUGINS": "none", "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(
        [sys.executable, PROGRAM, site], capture_output=True, text=True, env=environment, timeout=300
    )
    lines = [line.split(" ", 1) for line in result.stdout.splitlines() if line.startswith(CHECKS)]
    assert result.returncode == 0 and len(lines) == len(CHECKS), result.stdout + result.stderr
    return dict(lines)


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    site = copy_site(tmp_path_factory.mktemp("patched") / "site-packages")
    Installation(SERIES, site).apply()
    return run_checks(site)


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return run_checks(copy_site(tmp_path_factory.mktemp("released") / "site-packages"))


@pytest.mark.parametrize("check", CHECKS)
def test_what_a_patch_adds_works(patched: dict[str, str], check: str) -> None:
    if patched[check].startswith("skipped"):
        pytest.skip(patched[check])
    assert patched[check] == "ok"


@pytest.mark.parametrize("check", CHECKS)
def test_the_release_lacks_it(released: dict[str, str], check: str) -> None:
    """A patch whose check passes without it is to be deleted."""
    if released[check].startswith("skipped"):
        pytest.skip(released[check])
    assert released[check].startswith("failed: ")
