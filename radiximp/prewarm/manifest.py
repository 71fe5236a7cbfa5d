"""Hotspots as bytes, to be prefilled after a restart: versioned, with a digest, refused whole when anything is off.

{"radiximp_hotspots": 1, "digest": "...", "content": {"fingerprint": {...}, "entries": [{"input_ids": [...], ...}]}}

An entry holds a prompt's tokens and its tenant. Several servers may share a file, so writing is merging.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

import orjson

VERSION = 1
MAX_ENTRIES = 256
MAX_TOKENS = 1 << 18
# An entry that no server called a hotspot for this long is dropped; its score halves every HALF_LIFE_S.
MAX_AGE_S = 7 * 86400.0
HALF_LIFE_S = 6 * 3600.0


class ManifestError(ValueError):
    """The bytes are no hotspots for this server; the message says what was expected and found."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A hotspot's prompt. lora: the adapter's name. score: as of `seen_s`, seconds since the epoch."""

    input_ids: list[int]
    extra_key: str | None
    cache_salt: str | None
    lora: str | None
    score: float
    queries: int
    sessions: int
    seen_s: float

    @property
    def namespace(self) -> tuple[str | None, str | None, str | None]:
        """Whose prompt it is."""
        return self.extra_key, self.cache_salt, self.lora

    def worth(self, now_s: float) -> float:
        """The score, less with time since it was seen."""
        return self.score / (1 + max(now_s - self.seen_s, 0.0) / HALF_LIFE_S)


def dump(entries: Iterable[Entry], fingerprint: dict[str, Any]) -> bytes:
    """The file's bytes; equal entries give equal bytes."""
    content = {"fingerprint": fingerprint, "entries": [asdict(entry) for entry in entries]}
    return orjson.dumps({"radiximp_hotspots": VERSION, "digest": _digest(content), "content": content})


def load(data: bytes, fingerprint: dict[str, Any]) -> list[Entry]:
    """The entries, most valuable first as written. Raises ManifestError."""
    try:
        outer = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ManifestError(f"expected the JSON that radiximp writes: {error}") from None
    if not isinstance(outer, dict) or outer.get("radiximp_hotspots") != VERSION:
        raise ManifestError(f"expected radiximp hotspots of version {VERSION}")
    content = outer.get("content")
    if not isinstance(content, dict) or outer.get("digest") != _digest(content):
        raise ManifestError("the digest does not match: the file is damaged")
    for name, expected in fingerprint.items():
        found = content["fingerprint"].get(name)
        if found != expected:
            raise ManifestError(f"made with {name} {found!r}, this server has {expected!r}")
    names = {field.name for field in fields(Entry)}
    return [Entry(**{name: entry[name] for name in names}) for entry in content["entries"]]


def merged(ours: Iterable[Entry], others: Iterable[Entry], now_s: float) -> list[Entry]:
    """What the file holds next, most valuable first: ours, and what others wrote that is not too old.

    A prompt that another of its tenant begins with is in that one. Bounded in entries and tokens.
    """
    newest: dict[tuple, Entry] = {}
    for entry in (*others, *ours):
        key = (entry.namespace, tuple(entry.input_ids))
        known = newest.get(key)
        if now_s - entry.seen_s <= MAX_AGE_S and (known is None or entry.seen_s >= known.seen_s):
            newest[key] = entry
    kept = _without_prefixes(newest)
    kept.sort(key=lambda entry: (-entry.worth(now_s), -len(entry.input_ids), _key(entry)))
    found, num_tokens = [], 0
    for entry in kept[:MAX_ENTRIES]:
        num_tokens += len(entry.input_ids)
        if num_tokens > MAX_TOKENS:
            break
        found.append(entry)
    return found


def _without_prefixes(entries: dict[tuple, Entry]) -> list[Entry]:
    # In order of namespace and tokens a prompt stands right before those that it begins.
    order = sorted(entries.values(), key=_key)
    kept = []
    for entry, following in zip(order, [*order[1:], None], strict=False):
        is_prefix = (
            following is not None
            and following.namespace == entry.namespace
            and following.input_ids[: len(entry.input_ids)] == entry.input_ids
        )
        if not is_prefix:
            kept.append(entry)
    return kept


def _key(entry: Entry) -> tuple:
    return tuple((part is not None, part or "") for part in entry.namespace), entry.input_ids


def _digest(content: Any) -> str:
    return hashlib.blake2b(orjson.dumps(content, option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()
