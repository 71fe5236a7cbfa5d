"""Prefixes of tokens or pages: how far two agree, and digests that do not depend on how a tree cuts them into nodes."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable
from typing import Any

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


def num_agreed(one: np.ndarray, other: np.ndarray) -> int:
    """How many ids two sequences, [n] and [m] integers, have in common from their start. O(min(n, m))."""
    shorter = min(len(one), len(other))
    differs = one[:shorter] != other[:shorter]
    return int(differs.argmax()) if differs.any() else shorter


def prefix_hasher(
    node: Any, token_ids_of: Callable[[Any], np.ndarray], start: Callable[[], hashlib.blake2b]
) -> hashlib.blake2b:
    """Hasher of the prefix that ends with a tree node; kept on the nodes it passes, as `prefix_hasher`.

    start: the namespace's hasher, where the root keeps none. O(tokens of nodes not passed before).
    """
    chain = []
    while node.parent is not None and getattr(node, "prefix_hasher", None) is None:
        chain.append(node)
        node = node.parent
    hasher = getattr(node, "prefix_hasher", None)
    if hasher is None:
        hasher = start()
    for node in reversed(chain):
        hasher = node.prefix_hasher = extended(hasher, token_ids_of(node))
    return hasher
