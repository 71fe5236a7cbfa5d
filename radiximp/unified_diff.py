"""Strict unified diffs: read one, put its hunks into a file's bytes, take them out again.

Pure functions over bytes; `radiximp.patching` owns the files. There is no fuzz and no searching: a hunk
fits at its stated line with its exact text, or it does not fit. The line numbers of every diff refer to the
*released* file, so any set of non-overlapping diffs composes in any order, and what was put in can be taken
out exactly. Libraries that parse diffs either do not apply them (unidiff) or lose line ends (whatthepatch).
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from dataclasses import dataclass

_HUNK_HEADER = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_PREFIXES = (b"a/", b"b/")
_MARKS = (b" ", b"-", b"+")
_NO_LINE_END = b"\\ "  # "\ No newline at end of file" says so of the line above it
_SIGNATURE = b"-- \n"  # git format-patch ends with it


class DiffError(ValueError):
    """A diff that cannot be read, or a hunk whose text is not where it says."""


@dataclass(frozen=True, order=True)
class Hunk:
    """One replacement: `old_lines` from `start` on (0-based, in the released file) become `new_lines`.

    Lines keep their line ends and include the context.
    """

    start: int
    old_lines: tuple[bytes, ...]
    new_lines: tuple[bytes, ...]


def parse(text: bytes) -> dict[str, tuple[Hunk, ...]]:
    """Path (without its a/ or b/) -> hunks, of a plain or `git format-patch` diff.

    Raises DiffError for anything but changes to existing files, and for counts that do not add up.
    """
    lines = _split(text)
    changes: dict[str, tuple[Hunk, ...]] = {}
    i = 0
    while i < len(lines):
        if lines[i].startswith(b"--- ") and i + 1 < len(lines) and lines[i + 1].startswith(b"+++ "):
            path, new_path = _path(lines[i]), _path(lines[i + 1])
            if path != new_path:
                raise DiffError(f"{path} -> {new_path}: only changes to existing files are supported")
            if path in changes:
                raise DiffError(f"{path} appears twice")
            changes[path], i = _parse_hunks(lines, i + 2, path)
        elif lines[i].startswith(b"@@ "):
            raise DiffError(f"line {i + 1}: a hunk without its --- and +++ lines")
        else:
            i += 1  # mail header, message, diffstat, index line, signature
    if not changes:
        raise DiffError("holds no change to a file")
    return changes


def apply(content: bytes, hunks: Iterable[Hunk]) -> bytes:
    """`content` (the released file) with all `hunks` in it. Raises DiffError and changes nothing."""
    return _replace(content, [(h.start, h.old_lines, h.new_lines) for h in sorted(hunks)])


def unapply(content: bytes, hunks: Iterable[Hunk]) -> bytes:
    """The released file, given `content` that holds exactly `hunks`. Raises DiffError if it does not."""
    edits, shift = [], 0
    for h in sorted(hunks):
        edits.append((h.start + shift, h.new_lines, h.old_lines))
        shift += len(h.new_lines) - len(h.old_lines)
    return _replace(content, edits)


def _replace(content: bytes, edits: list[tuple[int, tuple[bytes, ...], tuple[bytes, ...]]]) -> bytes:
    """Each (start, present lines, wanted lines) carried out; `edits` ascend by start."""
    lines, out, end = _split(content), [], 0
    for start, present, wanted in edits:
        if start < end:
            raise DiffError(f"line {start + 1}: two changes overlap")
        if tuple(lines[start : start + len(present)]) != present:
            raise DiffError(f"line {start + 1}: the text there is not the expected one")
        out += lines[end:start]
        out += wanted
        end = start + len(present)
    return b"".join(out + lines[end:])


def _parse_hunks(lines: list[bytes], i: int, path: str) -> tuple[tuple[Hunk, ...], int]:
    """The hunks that begin at `lines[i]`, and the index behind them."""
    hunks: list[Hunk] = []
    while i < len(lines) and (header := _HUNK_HEADER.match(lines[i])):
        hunk, i = _parse_hunk(lines, i, header, path)
        hunks.append(hunk)
    if not hunks:
        raise DiffError(f"line {i + 1}: no hunk for {path}")
    is_next_part = i == len(lines) or lines[i] == _SIGNATURE or lines[i].startswith(b"--- ")
    if not is_next_part and lines[i][:1] in _MARKS:
        raise DiffError(f"line {i + 1}: the hunk for {path} is longer than it says")
    return tuple(hunks), i


def _parse_hunk(lines: list[bytes], i: int, header: re.Match[bytes], path: str) -> tuple[Hunk, int]:
    num_old, num_new = (int(header[group] or 1) for group in (2, 4))
    old: list[bytes] = []
    new: list[bytes] = []
    header_line, i = i + 1, i + 1
    while len(old) < num_old or len(new) < num_new:
        mark, body = (lines[i][:1], lines[i][1:]) if i < len(lines) else (b"", b"")
        i += 1
        if mark not in _MARKS:
            raise DiffError(f"line {i}: the hunk for {path} ends too early")
        if i < len(lines) and lines[i].startswith(_NO_LINE_END):
            body = body.removesuffix(b"\n")
            i += 1
        if mark != b"+":
            old.append(body)
        if mark != b"-":
            new.append(body)
    if (len(old), len(new)) != (num_old, num_new):
        raise DiffError(f"line {header_line}: the counts of the hunk for {path} do not add up")
    if not old:
        raise DiffError(f"line {header_line}: a hunk for {path} without context")
    return Hunk(int(header[1]) - 1, tuple(old), tuple(new)), i


def _path(line: bytes) -> str:
    path = line[4:].rstrip(b"\n").split(b"\t")[0]
    return (path[2:] if path.startswith(_PREFIXES) else path).decode()


def _split(content: bytes) -> list[bytes]:
    # bytes.splitlines would also split at a lone \r
    return io.BytesIO(content).readlines()
