"""A folder of generated files that is made once, verified on each use and replaced as a whole.

The folder appears by one rename, so that a reader sees all of it or none of it, whoever is killed
when. `manifest.json` holds the SHA-256 of every file; a folder that does not match it, or that was
made from something else (`source`), is rebuilt. Imports neither torch nor sglang.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

MANIFEST = "manifest.json"
_READ_BYTES = 1 << 20


class ArtifactError(RuntimeError):
    """The folder cannot be made or used; the message is one line a user can act on."""


def cache_root() -> Path:
    """The user's cache folder: $RADIXIMP_CACHE, else $XDG_CACHE_HOME/radiximp, else ~/.cache/radiximp."""
    if own := os.environ.get("RADIXIMP_CACHE"):
        return Path(own).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "radiximp"
    return Path.home() / ".cache" / "radiximp"


def require_usable(root: Path) -> None:
    """Create `root` if absent; raises `ArtifactError` unless files can be read and written in it."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=root, prefix=".probe-"):
            list(root.iterdir())
    except OSError as error:
        raise ArtifactError(
            f"cache folder {root} cannot be used ({error.strerror or error}): "
            "make it readable and writable, or name another one in RADIXIMP_CACHE"
        ) from error


def ensure(
    root: Path,
    name: str,
    source: dict[str, str | int],
    build: Callable[[Path], None],
    report: Callable[[str], None],
) -> Path:
    """Return `root/name`, verified; `build(folder)` fills an empty folder when it is absent or damaged.

    `source` says what the files are made from (JSON values); another value than the manifest's means
    a rebuild. One process builds at a time, the others wait for it and use the result.
    """
    require_usable(root)
    folder = root / name
    with _locked(root / f".{name}.lock", report):
        fault = find_fault(folder, source)
        if fault is None:
            return folder
        if folder.exists():
            report(f"{folder}: {fault}; building it again")
        _remove_leftovers(root, name)
        staging = Path(tempfile.mkdtemp(dir=root, prefix=f".{name}.building-"))
        try:
            build(staging)
            _seal(staging, source)
            _swap_in(staging, folder, root)
        except OSError as error:
            raise ArtifactError(f"cannot write {folder}: {error.strerror or error}") from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return folder


def find_fault(folder: Path, source: dict[str, str | int]) -> str | None:
    """What is wrong with the folder, in words; None if each file matches the manifest. Reads every byte."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        expected = manifest["sha256"]
        made_from = manifest["source"]
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{MANIFEST} is unreadable ({error})"
    if made_from != source:
        return f"made from {made_from}, wanted {source}"
    for file_name, digest in expected.items():
        try:
            if _sha256(folder / file_name) != digest:
                return f"{file_name} is damaged (checksum differs)"
        except OSError as error:
            return f"{file_name} cannot be read ({error.strerror or error})"
    return None


def _seal(folder: Path, source: dict[str, str | int]) -> None:
    """Write the manifest over all files and flush everything to disk."""
    names = sorted(path.name for path in folder.iterdir())
    manifest = {"source": source, "sha256": {name: _sha256(folder / name) for name in names}}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
    for path in [*folder.iterdir(), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    for path in folder.iterdir():
        path.chmod(0o644)
    folder.chmod(0o755)  # mkdtemp's 0700 would hide a shared cache from other users


def _swap_in(staging: Path, folder: Path, root: Path) -> None:
    """Put `staging` in the place of `folder`, which moves away first: rename replaces no full directory."""
    if folder.exists():
        aside = Path(tempfile.mkdtemp(dir=root, prefix=f".{folder.name}.old-"))
        folder.rename(aside / folder.name)
        staging.rename(folder)
        shutil.rmtree(aside, ignore_errors=True)
    else:
        staging.rename(folder)


def _remove_leftovers(root: Path, name: str) -> None:
    """Delete what a killed builder left; safe because the caller holds the lock."""
    for kind in ("building", "old"):
        for path in root.glob(f".{name}.{kind}-*"):
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _locked(path: Path, report: Callable[[str], None]) -> Iterator[None]:
    """Hold an exclusive file lock; the kernel releases it when its holder dies."""
    try:
        handle = path.open("w")
    except OSError as error:
        raise ArtifactError(f"cannot open {path}: {error.strerror or error}") from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"waiting for another process that holds {path}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while block := handle.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()
