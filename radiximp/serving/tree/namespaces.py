"""Keeps (LoRA, extra_key) pairs apart that SGLang joins into one string.

SGLang appends the adapter's id to the request's extra_key, so ("ab", "c") and ("a", "bc") share
KV computed by different weights. The tree's key becomes an injective encoding of the pair instead.
It still ends in the adapter's id, which SGLang's KV events look up.
"""

from __future__ import annotations

_LORA = "\x00lora:"
_PLAIN = "\x00plain:"


_is_active = False


def activate() -> None:
    """From now on this process keys requests by the injective encoding (a cache of ours was built)."""
    global _is_active
    _is_active = True


def joined(extra_key: str | None, lora_id: str | None) -> str | None:
    """One string for the pair; different pairs never give the same one. None and "" extra_key differ."""
    if lora_id is not None:
        length = "-" if extra_key is None else str(len(extra_key))
        return f"{_LORA}{length}:{extra_key or ''}{lora_id}"
    if extra_key is not None and extra_key.startswith("\x00"):
        return _PLAIN + extra_key
    return extra_key


def parted(key: str | None) -> tuple[str | None, str | None]:
    """The (extra_key, lora_id) that `joined` made a key of."""
    if key is None or not key.startswith("\x00"):
        return key, None
    if key.startswith(_PLAIN):
        return key[len(_PLAIN) :], None
    length, _, rest = key[len(_LORA) :].partition(":")
    if length == "-":
        return None, rest
    return rest[: int(length)], rest[int(length) :]


def separate_lora(result, req, *args, extra_key=None, lora_id=None, **kwargs) -> None:
    """After `Req.__init__`: replace the concatenation by the injective key."""
    if _is_active:
        req.extra_key = joined(extra_key, lora_id)
