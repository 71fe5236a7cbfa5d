"""Digests of token prefixes that do not depend on how a tree happens to cut them into nodes."""

from __future__ import annotations

import hashlib
from array import array

import numpy as np

_DIGEST_BYTES = 16


def namespace_hasher(*parts: str | None) -> hashlib.blake2b:
    """A hasher seeded with a tenant's namespace; absent, empty and joined parts all differ."""
    hasher = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        if part is None:
            hasher.update(b"\x00")
        else:
            encoded = part.encode()
            hasher.update(b"\x01" + len(encoded).to_bytes(8, "little") + encoded)
    return hasher


def extended(hasher: hashlib.blake2b, token_ids: np.ndarray | array) -> hashlib.blake2b:
    """A new hasher for the prefix followed by `token_ids`, [num_tokens] 64-bit integers; O(number of tokens)."""
    longer = hasher.copy()
    longer.update(token_ids)
    return longer
