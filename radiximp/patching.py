"""Apply the patch series to an installed SGLang, tell what is applied, and take it out again.

Imports neither torch nor sglang: a half-patched sglang might not import, and must still be repaired.
Nothing is recorded on disk. A file's state is read off the file itself: it holds the released content
(the sha256 in the wheel's RECORD), or taking out some of our patches yields exactly that content, or
someone else changed it and it is left alone. `radiximp.cli.patch` is the caller.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from radiximp import file_swap, unified_diff

SGLANG_VERSION = "0.5.23"
_UPSTREAM_PREFIX = "python/"  # SGLang's repository keeps the package there; the wheel does not
_LOCK_NAME = ".radiximp-patch.lock"
_REINSTALL = f"pip install --force-reinstall --no-deps sglang=={SGLANG_VERSION}"


class PatchError(Exception):
    """One line that says why nothing was changed."""


@dataclass(frozen=True)
class Patch:
    """One file of the series; `changes` maps a path below site-packages to its hunks."""

    number: str
    name: str
    changes: dict[str, tuple[unified_diff.Hunk, ...]]


@dataclass(frozen=True)
class Status:
    """`state` is "applied", "not applied", "half applied" or "cannot apply"; the last two have a `reason`."""

    patch: Patch
    state: str
    reason: str = ""

    @property
    def is_clean(self) -> bool:
        return not self.reason

    def __str__(self) -> str:
        return f"{self.patch.name}: {self.state}" + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True)
class _File:
    """A file that some patch changes: what it holds, and which patches that includes.

    `released` is None, and `problem` says why, when the content is neither SGLang's nor ours.
    """

    path: Path
    content: bytes = b""
    released: bytes | None = None
    applied: frozenset[str] = frozenset()
    problem: str = ""


def patch_directory() -> Path:
    """Where the series lies: inside an installed package, or at the root of a source checkout."""
    package = Path(__file__).parent
    for directory in (package / "patches", package.parent / "patches"):
        if directory.is_dir():
            return directory
    raise PatchError(f"the patch series is missing from {package}: reinstall radiximp")


def load_series(directory: Path) -> list[Patch]:
    """All NNNN-slug.patch files, in order of their numbers."""
    series: list[Patch] = []
    for path in sorted(directory.glob("*.patch")):
        if not (match := re.fullmatch(r"(\d{4})-[a-z0-9-]+", path.stem)):
            raise PatchError(f"{path.name}: a patch is named NNNN-slug.patch")
        if series and series[-1].number == match[1]:
            raise PatchError(f"{path.name}: number {match[1]} is taken by {series[-1].name}")
        try:
            changes = unified_diff.parse(path.read_bytes())
        except unified_diff.DiffError as error:
            raise PatchError(f"{path.name}: {error}") from error
        in_wheel = {name.removeprefix(_UPSTREAM_PREFIX): hunks for name, hunks in changes.items()}
        series.append(Patch(match[1], path.stem, in_wheel))
    if not series:
        raise PatchError(f"no patches in {directory}")
    return series


class Installation:
    """The series against one installed SGLang; every method reads the files anew.

    Not for use by two threads; other processes are held off by a lock file in `root`.
    """

    def __init__(self, series: list[Patch], root: Path | None = None):
        """`root` is a site-packages folder; None: that of this interpreter. Raises PatchError."""
        self._series = series
        self._root, self._released_sha256 = _locate_sglang(root)

    def check(self) -> list[Status]:
        """One status per patch; changes nothing, needs no write permission."""
        with _one_line_errors(), file_swap.shared(self._root / _LOCK_NAME):
            return self._statuses(self._read_files())

    def apply(self, only: str | None = None) -> list[Status]:
        """Put in every missing patch (or just number `only`): all of them or, with PatchError, none."""
        return self._change(only, "applied")

    def revert(self, only: str | None = None) -> list[Status]:
        """Take out every patch, half applied ones too: each file is the released one byte for byte."""
        return self._change(only, "not applied")

    def _change(self, only: str | None, goal: str) -> list[Status]:
        is_apply = goal == "applied"
        if only is not None and only not in {patch.number for patch in self._series}:
            numbers = ", ".join(patch.number for patch in self._series)
            raise PatchError(f"there is no patch {only}; there are {numbers}")
        with _one_line_errors(), file_swap.exclusive(self._root / _LOCK_NAME):
            files = self._read_files()
            file_swap.discard_staged(file.path for file in files.values())
            chosen = [s for s in self._statuses(files) if only in (None, s.patch.number)]
            for status in chosen:
                # a patch that would not fit is no reason to keep the others in
                has_unknown_file = any(files[path].problem for path in status.patch.changes)
                if has_unknown_file or (is_apply and not status.is_clean):
                    raise PatchError(str(status))
            changeable = {"not applied"} if is_apply else {"applied", "half applied"}
            to_change = {s.patch.number for s in chosen if s.state in changeable}
            if not to_change:
                what = f"patch {only}" if only else "every patch"
                raise PatchError(f"{what} is already applied" if is_apply else f"{what} is {goal}")
            file_swap.swap_all(self._swaps(files, to_change, is_apply))
            done = self._statuses(self._read_files())
            for status in done:
                if status.patch.number in to_change and status.state != goal:
                    raise PatchError(f"{status.patch.name} should be {goal} but is {status.state}")
            return done

    def _swaps(self, files: dict[str, _File], numbers: set[str], is_apply: bool) -> list[file_swap.Swap]:
        swaps = []
        for path, file in files.items():
            touching = {p.number for p in self._series if path in p.changes} & numbers
            wanted = file.applied | touching if is_apply else file.applied - touching
            if wanted != file.applied:
                swaps.append(file_swap.Swap(file.path, file.content, self._with_patches(path, file, wanted)))
        return swaps

    def _with_patches(self, path: str, file: _File, numbers: Iterable[str]) -> bytes:
        assert file.released is not None
        return unified_diff.apply(file.released, self._hunks(path, numbers))

    def _hunks(self, path: str, numbers: Iterable[str]) -> list[unified_diff.Hunk]:
        return [h for p in self._series if p.number in numbers for h in p.changes.get(path, ())]

    def _statuses(self, files: dict[str, _File]) -> list[Status]:
        return [self._status(patch, {path: files[path] for path in patch.changes}) for patch in self._series]

    def _status(self, patch: Patch, files: dict[str, _File]) -> Status:
        for path, file in files.items():
            if file.problem:
                return Status(patch, "cannot apply", f"{path} {file.problem}")
        applied = [path for path, file in files.items() if patch.number in file.applied]
        missing = [path for path in files if path not in applied]
        if not missing:
            return Status(patch, "applied")
        if applied:
            remedy = f"run: radiximp patch revert --only {patch.number}"
            reason = f"{', '.join(applied)} is patched, {', '.join(missing)} is not; {remedy}"
            return Status(patch, "half applied", reason)
        for path, file in files.items():
            try:
                self._with_patches(path, file, file.applied | {patch.number})
            except unified_diff.DiffError as error:
                return Status(patch, "cannot apply", f"{path} {error}")
        return Status(patch, "not applied")

    def _read_files(self) -> dict[str, _File]:
        paths = sorted({path for patch in self._series for path in patch.changes})
        return {path: self._read_file(path) for path in paths}

    def _read_file(self, path: str) -> _File:
        target = self._root / path
        if path not in self._released_sha256:
            return _File(target, problem="is not in sglang's RECORD: sglang was not installed from its wheel")
        if not target.is_file():
            return _File(target, problem=f"is missing; to restore it: {_REINSTALL}")
        content = target.read_bytes()
        touching = [patch.number for patch in self._series if path in patch.changes]
        for size in range(len(touching) + 1):
            for numbers in combinations(touching, size):
                try:
                    released = unified_diff.unapply(content, self._hunks(path, numbers))
                except unified_diff.DiffError:
                    continue
                if _record_digest(released) == self._released_sha256[path]:
                    return _File(target, content, released, frozenset(numbers))
        return _File(target, content, problem=f"was changed by something else; to restore it: {_REINSTALL}")


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except (file_swap.SwapError, unified_diff.DiffError) as error:
        raise PatchError(str(error)) from error
    except OSError as error:
        raise PatchError(f"{error.filename or 'sglang'}: {error.strerror}") from error


def _locate_sglang(root: Path | None) -> tuple[Path, dict[str, str]]:
    """The site-packages folder that holds SGLang, and the sha256 (as in RECORD) of each of its files."""
    where = {} if root is None else {"path": [str(root)]}
    distribution = next(iter(importlib.metadata.distributions(name="sglang", **where)), None)
    if distribution is None:
        place = f" in {root}" if root else ""
        raise PatchError(f"sglang is not installed{place}; run: pip install sglang=={SGLANG_VERSION}")
    if distribution.version != SGLANG_VERSION:
        found = f"sglang {distribution.version} is installed"
        raise PatchError(f"{found}; the patches are for {SGLANG_VERSION} only")
    site_packages = Path(str(distribution.locate_file("")))
    if root is None:
        spec = importlib.util.find_spec("sglang")  # of a top-level package: finds it without importing it
        places = [Path(place).resolve() for place in (spec and spec.submodule_search_locations) or []]
        if (site_packages / "sglang").resolve() not in places:
            imported = places[0] if places else "nowhere"
            raise PatchError(f"sglang is imported from {imported}, not from {site_packages}")
    record = csv.reader((distribution.read_text("RECORD") or "").splitlines())
    digests = {row[0]: row[1].removeprefix("sha256=") for row in record if len(row) > 1}
    return site_packages, digests


def _record_digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
