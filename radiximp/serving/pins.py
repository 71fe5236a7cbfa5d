"""Pins by name: what `/radiximp/pins` puts on the tree, on every rank at the same step.

A soft pin (the default) lasts `ttl_s` after its last use, and one that finds the budget spent displaces the coldest soft
ones; a hard pin ends at a fixed time and displaces soft ones only. No pin ever wedges the pool: a pinned leaf goes after all
others, but it goes when a running request needs its memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radiximp.policy.history import Pin

if TYPE_CHECKING:
    from sglang.srt.mem_cache.radix_cache import RadixKey

    from radiximp.serving.tree_core import ImportanceTreeCore

MAX_PINS = 10_000


@dataclass(eq=False)
class NamedPin:
    """A pin on one prompt of a call, and what was asked for."""

    pin_id: str
    prompt: int
    key: RadixKey
    pin: Pin
    is_hard: bool


class PinBook:
    """Owned by a tree core. add, remove: O(path) a prompt and O(pins) without looking at the tree."""

    def __init__(self, core: ImportanceTreeCore) -> None:
        self._core = core
        self._pins: list[NamedPin] = []

    def clear(self) -> None:
        """The tree is gone, and with it what was pinned."""
        self._pins.clear()

    def add(self, pin_id: str, keys: Sequence[RadixKey], ttl_s: float | None, is_hard: bool) -> list[dict]:
        """Pin the device prefix of each key. Raises ValueError, with nothing pinned, beyond MAX_PINS.

        ttl_s: None = until it is removed.
        """
        self._settle()
        if len(self._pins) + len(keys) > MAX_PINS:
            raise ValueError(f"at most {MAX_PINS} prompts can be pinned, {len(self._pins)} are; remove some")
        now_s = self._core.clock.now_s()
        expires_s = math.inf if ttl_s is None else now_s + ttl_s
        added = []
        for number, key in enumerate(keys):
            pin = Pin(expires_s, None if is_hard else ttl_s, last_use_s=now_s)
            named = NamedPin(pin_id, number, key, pin, is_hard)
            self._make_room(key)
            self._core.place_pin(key, pin)
            self._pins.append(named)
            added.append(named)
        return [self._describe(named) for named in added]

    def _make_room(self, key: RadixKey) -> None:
        """Displace the coldest soft pins until the prefix fits; none for one that cannot fit."""
        core = self._core
        if core.unpinned_device_tokens(key) > core.pin_budget_tokens:
            return
        soft = sorted(
            (named for named in self._pins if not named.is_hard), key=lambda named: named.pin.last_use_s
        )
        for named in soft:
            if core.pinned_tokens + core.unpinned_device_tokens(key) <= core.pin_budget_tokens:
                return
            self._drop(named)

    def _drop(self, named: NamedPin) -> None:
        self._pins.remove(named)
        self._core.lift_pin(named.key, named.pin)

    def remove(self, pin_id: str) -> int:
        """Take a call's pins off; returns how many there were."""
        self._settle()
        found = self._of(pin_id)
        for named in found:
            self._drop(named)
        return len(found)

    def describe(self, pin_id: str | None = None) -> list[dict]:
        """A call's pins, or all: oldest first, what each holds now and how long it lasts."""
        self._settle()
        return [self._describe(named) for named in self._of(pin_id)]

    def _of(self, pin_id: str | None) -> list[NamedPin]:
        return [named for named in self._pins if pin_id is None or named.pin_id == pin_id]

    def _settle(self) -> None:
        # The nodes drop expired pins themselves.
        self._core.settle()
        now_s = self._core.clock.now_s()
        self._pins = [named for named in self._pins if named.pin.expires_s > now_s]

    def _describe(self, named: NamedPin) -> dict:
        expires_in_s = named.pin.expires_s - self._core.clock.now_s()
        return {
            "pin_id": named.pin_id,
            "prompt": named.prompt,
            "hard": named.is_hard,
            "tokens_requested": len(named.key),
            "tokens_pinned": self._core.tokens_under(named.key, named.pin),
            "expires_in_s": None if math.isinf(expires_in_s) else expires_in_s,
        }
