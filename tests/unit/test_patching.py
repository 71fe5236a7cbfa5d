"""The applier against a small synthetic site-packages with its own RECORD."""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from radiximp import file_swap, patching, unified_diff
from radiximp.cli import main
from radiximp.patching import Installation, PatchError, load_series

A = b"one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten\n"
B = b"def f():\r\n    return 1\r\n# no line end"

# 0001 changes both files, 0002 a later part of the first one only.
PATCH_1 = b"""From 0 Mon Sep 17 00:00:00 2001
Subject: [PATCH] Two files

Why.
---
 python/sglang/a.py | 1 +
 2 files changed

diff --git a/python/sglang/a.py b/python/sglang/a.py
index 1..2 100644
--- a/python/sglang/a.py
+++ b/python/sglang/a.py
@@ -1,3 +1,4 @@ def header():
 one
+one and a half
 two
 three
diff --git a/python/sglang/b.py b/python/sglang/b.py
--- a/python/sglang/b.py
+++ b/python/sglang/b.py
@@ -2,2 +2,3 @@
     return 1\r
-# no line end
\\ No newline at end of file
+# a
+# b
\\ No newline at end of file
-- 
2.39.5
"""
PATCH_2 = b"""--- a/python/sglang/a.py
+++ b/python/sglang/a.py
@@ -8,3 +8,2 @@
 eight
-nine
 ten
"""
A_1 = A.replace(b"one\n", b"one\none and a half\n")
A_2 = A.replace(b"nine\n", b"")
A_12 = A_1.replace(b"nine\n", b"")
B_1 = b"def f():\r\n    return 1\r\n# a\n# b"


def digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def make_site(root: Path, version: str = "0.5.23") -> Path:
    package, info = root / "sglang", root / f"sglang-{version}.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    (package / "a.py").write_bytes(A)
    (package / "b.py").write_bytes(B)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    record = [f"sglang/a.py,sha256={digest(A)},{len(A)}", f"sglang/b.py,sha256={digest(B)},{len(B)}"]
    (info / "RECORD").write_text("\n".join([*record, f"sglang-{version}.dist-info/RECORD,,"]) + "\n")
    return root


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return make_site(tmp_path / "site-packages")


@pytest.fixture
def patches(tmp_path: Path) -> Path:
    directory = tmp_path / "patches"
    directory.mkdir()
    (directory / "0001-two-files.patch").write_bytes(PATCH_1)
    (directory / "0002-one-file.patch").write_bytes(PATCH_2)
    return directory


@pytest.fixture
def installation(site: Path, patches: Path) -> Installation:
    return Installation(load_series(patches), site)


def snapshot(site: Path) -> dict[str, bytes]:
    return {str(p.relative_to(site)): p.read_bytes() for p in sorted(site.rglob("*")) if p.is_file()}


def contents(site: Path) -> tuple[bytes, bytes]:
    return (site / "sglang/a.py").read_bytes(), (site / "sglang/b.py").read_bytes()


def shown(statuses: list[patching.Status]) -> list[str]:
    return [str(status) for status in statuses]


def test_apply_and_revert_restore_every_byte(site: Path, installation: Installation) -> None:
    before = snapshot(site)
    (site / "sglang/a.py").chmod(0o640)

    assert shown(installation.check()) == ["0001-two-files: not applied", "0002-one-file: not applied"]
    assert snapshot(site) == before  # a check leaves nothing behind, no lock either
    assert shown(installation.apply()) == ["0001-two-files: applied", "0002-one-file: applied"]
    assert contents(site) == (A_12, B_1)
    assert shown(installation.revert()) == ["0001-two-files: not applied", "0002-one-file: not applied"]
    assert snapshot(site) == before
    assert (site / "sglang/a.py").stat().st_mode & 0o777 == 0o640


def test_patches_of_one_file_go_in_and_out_in_any_order(site: Path, installation: Installation) -> None:
    for steps in (
        [("apply", "0002", A_2), ("apply", "0001", A_12), ("revert", "0002", A_1), ("revert", "0001", A)],
        [("apply", "0001", A_1), ("apply", None, A_12), ("revert", "0001", A_2), ("revert", None, A)],
    ):
        for action, only, expected in steps:
            getattr(installation, action)(only)
            assert contents(site)[0] == expected


def test_what_is_done_already_is_refused(site: Path, installation: Installation) -> None:
    with pytest.raises(PatchError, match="^every patch is not applied$"):
        installation.revert()
    installation.apply("0001")
    with pytest.raises(PatchError, match="^patch 0001 is already applied$"):
        installation.apply("0001")
    with pytest.raises(PatchError, match="^patch 0002 is not applied$"):
        installation.revert("0002")
    installation.apply()
    with pytest.raises(PatchError, match="^every patch is already applied$"):
        installation.apply()
    with pytest.raises(PatchError, match="^there is no patch 0007; there are 0001, 0002$"):
        installation.apply("0007")


@pytest.mark.parametrize("edit", [b"# mine\n", b" "])
def test_a_changed_file_is_left_alone(site: Path, installation: Installation, edit: bytes) -> None:
    path = site / "sglang/b.py"
    path.write_bytes(B + edit)
    before = snapshot(site)

    first, second = installation.check()
    assert str(first) == (
        "0001-two-files: cannot apply: sglang/b.py was changed by something else; to restore it: "
        "pip install --force-reinstall --no-deps sglang==0.5.23"
    )
    assert second.state == "not applied"
    with pytest.raises(PatchError, match="^0001-two-files: cannot apply: sglang/b.py was changed"):
        installation.apply()
    assert snapshot(site) == before
    installation.apply("0002")  # does not touch the changed file
    assert contents(site) == (A_2, B + edit)


def test_a_changed_patched_file_is_not_reverted(site: Path, installation: Installation) -> None:
    installation.apply()
    (site / "sglang/a.py").write_bytes(A_12 + b"eleven\n")
    before = snapshot(site)
    with pytest.raises(PatchError, match="sglang/a.py was changed by something else"):
        installation.revert()
    assert snapshot(site) == before


def test_context_must_be_exact_even_when_the_file_is_released(site: Path, patches: Path) -> None:
    # The text exists, one line below where the hunk says.
    (patches / "0002-one-file.patch").write_bytes(PATCH_2.replace(b"-8,3 +8,2", b"-7,3 +7,2"))
    installation = Installation(load_series(patches), site)
    before = snapshot(site)
    message = "0002-one-file: cannot apply: sglang/a.py line 7: the text there is not the expected one"
    assert shown(installation.check())[1] == message
    with pytest.raises(PatchError, match=message):
        installation.apply()
    assert snapshot(site) == before


def test_overlapping_patches_are_not_both_applied(site: Path, patches: Path) -> None:
    (patches / "0003-again.patch").write_bytes(PATCH_2)
    installation = Installation(load_series(patches), site)
    before = snapshot(site)
    with pytest.raises(PatchError, match="two changes overlap"):
        installation.apply()
    assert snapshot(site) == before
    states = [status.state for status in installation.apply("0002")]
    assert states == ["not applied", "applied", "cannot apply"]
    installation.revert()
    assert snapshot(site) == before


def test_other_versions_and_missing_sglang_are_refused(tmp_path: Path, patches: Path) -> None:
    series = load_series(patches)
    other = make_site(tmp_path / "other", version="0.5.24")
    with pytest.raises(PatchError, match="^sglang 0.5.24 is installed; the patches are for 0.5.23 only$"):
        Installation(series, other)
    with pytest.raises(PatchError, match="^sglang is not installed in .*; run: pip install sglang==0.5.23$"):
        Installation(series, tmp_path)


def test_a_file_that_record_does_not_list_or_that_is_gone(site: Path, patches: Path) -> None:
    series = load_series(patches)
    (site / "sglang/b.py").unlink()
    assert "sglang/b.py is missing; to restore it" in str(Installation(series, site).check()[0])
    (site / "sglang-0.5.23.dist-info/RECORD").write_text("sglang/b.py,sha256=x,1\n")
    assert shown(Installation(series, site).check())[1] == (
        "0002-one-file: cannot apply: sglang/a.py is not in sglang's RECORD: "
        "sglang was not installed from its wheel"
    )


def test_a_failing_rename_restores_all_files(
    site: Path, installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, replace, calls = snapshot(site), os.replace, []

    def fail_second(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail_second)
    with pytest.raises(
        PatchError, match=r"^cannot write .*b\.py: No space left on device; nothing was changed$"
    ):
        installation.apply()
    assert len(calls) == 3  # the third put the first file back
    assert snapshot(site) == before


KILLED_AFTER_ONE_RENAME = """
import os, signal, sys
from pathlib import Path
from radiximp import file_swap, patching
commit = file_swap._commit
def commit_and_die(path):
    commit(path)
    os.kill(os.getpid(), signal.SIGKILL)
file_swap._commit = commit_and_die
installation = patching.Installation(patching.load_series(Path(sys.argv[1])), Path(sys.argv[2]))
getattr(installation, sys.argv[3])()
"""


@pytest.mark.parametrize("action", ["apply", "revert"])
def test_revert_repairs_after_a_kill_between_renames(
    site: Path, patches: Path, installation: Installation, action: str
) -> None:
    before = snapshot(site)
    if action == "revert":
        installation.apply()
    killed = subprocess.run([sys.executable, "-c", KILLED_AFTER_ONE_RENAME, patches, site, action])
    assert killed.returncode == -signal.SIGKILL

    patched, other = ("a", "b") if action == "apply" else ("b", "a")
    half = (
        f"0001-two-files: half applied: sglang/{patched}.py is patched, sglang/{other}.py is not; "
        "run: radiximp patch revert --only 0001"
    )
    assert shown(installation.check())[0] == half
    with pytest.raises(PatchError, match="^0001-two-files: half applied"):
        installation.apply()
    installation.revert()
    assert snapshot(site) == before  # nor is the lock or a staged file left


def test_what_a_kill_before_the_first_rename_leaves_is_removed(
    site: Path, installation: Installation
) -> None:
    before = snapshot(site)
    (site / "sglang/a.py.radiximp-new").write_bytes(A_1[:10])
    with pytest.raises(PatchError, match="^every patch is not applied$"):
        installation.revert()
    assert snapshot(site) == before


def test_one_process_at_a_time(site: Path, installation: Installation) -> None:
    before = snapshot(site)
    with file_swap.exclusive(site / ".radiximp-patch.lock"):
        for action in (installation.apply, installation.revert, installation.check):
            with pytest.raises(PatchError, match="^another process is patching"):
                action()
    assert snapshot(site) == before
    installation.apply()


def test_a_lock_file_removed_before_it_is_locked_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flock, calls = tmp_path / "lock", file_swap._flock, []

    def flock_late(descriptor: int, mode: int, lock_path: Path) -> None:
        calls.append(mode)
        if len(calls) == 1:
            lock_path.unlink()  # what the former holder does last
        flock(descriptor, mode, lock_path)

    monkeypatch.setattr(file_swap, "_flock", flock_late)
    with file_swap.exclusive(path):
        assert len(calls) == 2
        with pytest.raises(file_swap.SwapError, match="another process"), file_swap.exclusive(path):
            pass
    assert not path.exists()


def test_a_file_changed_since_it_was_read_is_not_overwritten(site: Path) -> None:
    a, b = site / "sglang/a.py", site / "sglang/b.py"
    before = snapshot(site)
    with pytest.raises(file_swap.SwapError, match="a.py was changed by another program meanwhile; nothing"):
        file_swap.swap_all([file_swap.Swap(b, B, B_1), file_swap.Swap(a, A_2, A_1)])
    assert snapshot(site) == before


def test_many_processes_leave_one_winner(site: Path, patches: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from radiximp.patching import *\n"
        "try: Installation(load_series(Path(sys.argv[1])), Path(sys.argv[2])).apply()\n"
        "except PatchError as error: sys.exit(str(error))"
    )
    command = [sys.executable, "-c", code, patches, site]
    racers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    errors = [racer.communicate()[1] for racer in racers]
    assert [racer.returncode for racer in racers].count(0) == 1
    assert all(not e or "another process" in e or "already applied" in e for e in errors), errors
    assert contents(site) == (A_12, B_1)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to give up root to meet a read-only folder")
def test_read_only_site_packages(patches: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:  # tmp_path is closed to other users
        os.chmod(folder, 0o755)
        site = make_site(Path(folder) / "site-packages")
        installation = Installation(load_series(patches), site)
        os.seteuid(65534)
        try:
            assert [status.state for status in installation.check()] == ["not applied"] * 2
            with pytest.raises(PatchError, match="^cannot write in .*site-packages: Permission denied$"):
                installation.apply()
        finally:
            os.seteuid(0)


def test_stale_bytecode_goes_and_hard_links_stay(
    site: Path, tmp_path: Path, installation: Installation
) -> None:
    cache = site / "sglang/__pycache__"
    cache.mkdir()
    for name in ("a.cpython-311.pyc", "a.cpython-311.opt-1.pyc", "ab.cpython-311.pyc"):
        (cache / name).write_bytes(b"stale")
    os.link(site / "sglang/a.py", tmp_path / "installer-cache.py")
    installation.apply("0002")
    assert [path.name for path in cache.iterdir()] == ["ab.cpython-311.pyc"]
    assert (tmp_path / "installer-cache.py").read_bytes() == A


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"Subject: nothing\n", "holds no change to a file"),
        (PATCH_2.replace(b"-8,3", b"-8,4"), "the hunk for python/sglang/a.py ends too early"),
        (PATCH_2.replace(b"-8,3", b"-8,2"), "the counts of the hunk for python/sglang/a.py do not add up"),
        (PATCH_2 + b" eleven\n", "the hunk for python/sglang/a.py is longer than it says"),
        (b"--- /dev/null\n+++ b/new.py\n@@ -0,0 +1 @@\n+x\n", "only changes to existing files"),
        (PATCH_2 + PATCH_2, "python/sglang/a.py appears twice"),
        (b"--- a/x\n+++ b/x\n", "no hunk for x"),
        (b"--- a/x\n+++ b/x\n@@ -3,0 +4 @@\n+x\n", "a hunk for x without context"),
    ],
)
def test_a_bad_diff_is_named(patches: Path, text: bytes, message: str) -> None:
    (patches / "0002-one-file.patch").write_bytes(text)
    with pytest.raises(PatchError, match=rf"^0002-one-file\.patch: .*{message}"):
        load_series(patches)


def test_names_and_numbers(patches: Path, tmp_path: Path) -> None:
    (patches / "0002-twice.patch").write_bytes(PATCH_2)
    with pytest.raises(PatchError, match="0002-twice.patch: number 0002 is taken by 0002-one-file"):
        load_series(patches)
    (patches / "2-short.patch").write_bytes(PATCH_2)
    (patches / "0002-twice.patch").unlink()
    with pytest.raises(PatchError, match="2-short.patch: a patch is named NNNN-slug.patch"):
        load_series(patches)
    with pytest.raises(PatchError, match="no patches in"):
        load_series(tmp_path)


def test_a_lone_carriage_return_is_no_line_end() -> None:
    hunks = unified_diff.parse(b"--- a/x\n+++ b/x\n@@ -2 +2 @@\n-b\n+c\n")["x"]
    assert unified_diff.apply(b"a\ra\nb\n", hunks) == b"a\ra\nc\n"


def test_command_line(site: Path, patches: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr("radiximp.cli.patch.patch_directory", lambda: patches)
    root = ["--root", str(site)]
    assert main(["patch", "apply", "--only", "0001", *root]) == 0
    assert capsys.readouterr() == ("0001-two-files: applied\n", "")
    assert main(["patch", "check", *root]) == 0
    assert capsys.readouterr().out == "0001-two-files: applied\n0002-one-file: not applied\n"
    (site / "sglang/b.py").write_bytes(B)
    assert main(["patch", "check", *root]) == 2
    assert "0001-two-files: half applied: " in capsys.readouterr().out
    assert main(["patch", "apply", "--only", "0001", *root]) == 2
    out, err = capsys.readouterr()
    assert (
        out == "" and err.startswith("radiximp patch: 0001-two-files: half applied") and err.count("\n") == 1
    )
    assert main(["patch", "revert", *root]) == 0
    assert contents(site) == (A, B)
    assert main(["patch", "check", "--only", "9", *root]) == 2
    assert capsys.readouterr().err == "radiximp patch: there is no patch 9\n"


def test_nothing_heavy_is_imported() -> None:
    code = "import sys, radiximp.cli.patch; sys.exit(bool({'torch', 'sglang', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_every_patch_of_the_series_has_its_row() -> None:
    directory = patching.patch_directory()
    rows = [line for line in (directory / "README.md").read_text().splitlines() if line.startswith("| [")]
    assert [row.split("]")[0][3:] for row in rows] == [patch.name for patch in load_series(directory)]
    assert all(patching.SGLANG_VERSION in row for row in rows)
