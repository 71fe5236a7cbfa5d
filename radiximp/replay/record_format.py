"""The file that a server writes of what was done to its cache: how its lines and its prompts are coded.

A header line, then one JSON list per operation, in order. Prompts are page ids: salted 64-bit mixes of the tokens of a
page (32 bits where a page is one token). The salt is never written. So a record does not hold text, but it does
hold lengths, times, and which prompts begin alike; with pages of one token also which tokens are equal.
A prompt is coded as (block, rest): whole blocks of 64 pages that were seen before are named by number.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson

FORMAT = "radiximp operations"
VERSION = 1
_BLOCK_PAGES = 64
_CHUNK_BYTES = 1 << 16
_GZIP = b"\x1f\x8b"
# Bounds the writer's memory: beyond it all blocks are forgotten, on both sides, and named anew.
_MAX_BLOCKS = 1 << 16


class RecordError(ValueError):
    """The file is no record that this version can replay; the message is one line."""


def page_ids(token_ids: np.ndarray, page_tokens: int, salt: int) -> np.ndarray:
    """[num_pages] uint32 (page_tokens 1) or uint64: equal for equal pages; token_ids: [num_tokens] int64, whole pages."""
    tokens = token_ids.view(np.uint64)
    if page_tokens == 1:
        folded = ((tokens ^ (tokens >> np.uint64(32))) & np.uint64(0xFFFFFFFF)).astype(np.uint32)
        return _mix32(_mix32(folded ^ np.uint32(salt & 0xFFFFFFFF)) ^ np.uint32(salt >> 32))
    ids = np.full(len(tokens) // page_tokens, salt, np.uint64)
    for column in np.ascontiguousarray(tokens.reshape(-1, page_tokens).T):
        ids = _mix64(ids ^ column)
    return ids


def _mix32(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def _mix64(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64: one to one."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class KeyWriter:
    """Codes prompts; O(pages)."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[int, bytes], int] = {}

    def is_full(self) -> bool:
        """Whether the caller must write a `forget_blocks` operation and start with a new writer."""
        return len(self._blocks) >= _MAX_BLOCKS

    def encode(self, ids: np.ndarray) -> tuple[int, str]:
        """(number of the known blocks that the prompt begins with, what follows them)."""
        data, step = ids.tobytes(), _BLOCK_PAGES * ids.itemsize
        number, at = 0, 0
        while at + step <= len(data):
            known = self._blocks.get((number, data[at : at + step]))
            if known is None:
                break
            number, at = known, at + step
        rest = b64encode(data[at:]).decode()
        first = number
        for start in range(at, len(data) - step + 1, step):
            block = (number, data[start : start + step])
            number = len(self._blocks) + 1
            self._blocks[block] = number
        return first, rest


class KeyReader:
    """The other side of `KeyWriter`."""

    def __init__(self, page_tokens: int) -> None:
        self._type = np.uint32 if page_tokens == 1 else np.uint64
        self._blocks: list[tuple[int, np.ndarray]] = []
        self.clear()

    def clear(self) -> None:
        """Forget all blocks, as the writer did."""
        self._blocks = [(0, np.zeros(0, np.int64))]

    def decode(self, first: int, rest: str) -> np.ndarray:
        """[num_pages] int64."""
        if not 0 <= first < len(self._blocks):
            raise ValueError(f"block {first} was not named before")
        ids = np.frombuffer(b64decode(rest), self._type).astype(np.int64)
        pieces, number = [ids], first
        while number:
            number, block = self._blocks[number]
            pieces.append(block)
        number = first
        for start in range(0, len(ids) - _BLOCK_PAGES + 1, _BLOCK_PAGES):
            self._blocks.append((number, ids[start : start + _BLOCK_PAGES]))
            number = len(self._blocks) - 1
        return np.concatenate(pieces[::-1])


def is_record(path: Path) -> bool:
    """Whether a file is an operation record, plain or gzip."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        opening = file.read(_CHUNK_BYTES)
    if opening.startswith(_GZIP):
        try:
            opening = zlib.decompressobj(wbits=31).decompress(opening, _CHUNK_BYTES)
        except zlib.error:
            return False
    try:
        header = orjson.loads(opening.split(b"\n", 1)[0])
    except orjson.JSONDecodeError:
        return False
    return isinstance(header, dict) and header.get("format") == FORMAT


def read_lines(path: Path) -> Iterator[Any]:
    """The header, then each operation. A record that breaks off (its server was killed) ends at its last whole line."""
    for number, line in enumerate(_lines(path), 1):
        try:
            yield orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise RecordError(f"line {number} is not JSON: {error}") from None


def _lines(path: Path) -> Iterator[bytes]:
    """Whole lines only."""
    pieces: list[bytes] = []
    for chunk in _chunks(path):
        first, *lines = chunk.split(b"\n")
        pieces.append(first)
        if lines:
            yield b"".join(pieces)
            yield from lines[:-1]
            pieces = [lines[-1]]


def _chunks(path: Path) -> Iterator[bytes]:
    """The content, decompressed. Not through `gzip`, whose reader keeps back what comes last where the stream has no end."""
    with path.open("rb") as file:
        if not file.peek(2).startswith(_GZIP):
            yield from iter(lambda: file.read(_CHUNK_BYTES), b"")
            return
        stream = zlib.decompressobj(wbits=31)
        try:
            while chunk := file.read(_CHUNK_BYTES):
                while chunk:
                    if stream.eof:  # another member follows, as `cat a.gz b.gz` makes
                        stream = zlib.decompressobj(wbits=31)
                    yield stream.decompress(chunk)
                    chunk = stream.unused_data
        except zlib.error as error:
            raise RecordError(f"not a whole gzip stream: {error}") from None
