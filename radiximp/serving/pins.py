"""Pins by name: what `/radiximp/pins` puts on the tree, on every rank at the same step.

A soft pin (the default) lasts `ttl_s` after its last use, and one that finds the budget spent displaces the coldest soft
ones; a hard pin ends at a fixed time and displaces soft ones only. No pin ever wedges the pool: a pinned leaf goes after all
others, but it goes when a running request needs its memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radiximp.policy.history import Pin

if TYPE_CHECKING:
    from sglang.srt.mem_cache.radix_cache import RadixKey

    from radiximp.serving.tree_core import ImportanceTreeCore

MAX_PINS = 10_000


@dataclass
class NamedPin:
    """A pin, where it lies, and what was asked for."""

    pin_id: str
    key: RadixKey
    pin: Pin
    is_hard: bool


class PinBook:
    """Owned by a tree core. add, remove: O(path), and O(pins) where the budget is short."""

    def __init__(self, core: ImportanceTreeCore) -> None:
        self._core = core
        self._pins: dict[str, NamedPin] = {}

    def clear(self) -> None:
        """The tree is gone, and with it what was pinned."""
        self._pins.clear()

    def add(self, pin_id: str, key: RadixKey, ttl_s: float | None, is_hard: bool) -> dict:
        """Pin the device prefix of `key`. Raises ValueError beyond MAX_PINS; ttl_s None: until it is removed."""
        self._settle()
        if len(self._pins) >= MAX_PINS:
            raise ValueError(f"there are {MAX_PINS} pins already; remove some or let them expire")
        expires_s = math.inf if ttl_s is None else self._core.clock.now_s() + ttl_s
        named = NamedPin(pin_id, key, Pin(expires_s, None if is_hard else ttl_s), is_hard)
        self._make_room(key)
        self._core.place_pin(key, named.pin)
        self._pins[pin_id] = named
        return self._describe(named)

    def _make_room(self, key: RadixKey) -> None:
        """Displace the coldest soft pins until the prefix fits the budget, or there are none."""
        core = self._core
        wanted = core.unpinned_device_tokens(key)
        soft = [named for named in self._pins.values() if not named.is_hard]
        soft.sort(key=lambda named: (core.last_use_s(named.key), named.pin_id))
        for named in soft:
            if core.pinned_tokens + min(wanted, core.pin_budget_tokens) <= core.pin_budget_tokens:
                return
            self.remove(named.pin_id)

    def remove(self, pin_id: str) -> bool:
        """Take a pin off; False if there is none of that name."""
        self._settle()
        named = self._pins.pop(pin_id, None)
        if named is not None:
            self._core.lift_pin(named.key, named.pin)
        return named is not None

    def get(self, pin_id: str) -> dict | None:
        """What is known of a pin; None if there is none, or no longer."""
        self._settle()
        named = self._pins.get(pin_id)
        return None if named is None else self._describe(named)

    def all(self) -> list[dict]:
        """Every pin, oldest first."""
        self._settle()
        return [self._describe(named) for named in self._pins.values()]

    def _settle(self) -> None:
        self._core.settle()
        now_s = self._core.clock.now_s()
        for pin_id, named in list(self._pins.items()):
            if not named.pin.holds(now_s, self._core.last_use_s(named.key)):
                del self._pins[pin_id]
                self._core.lift_pin(named.key, named.pin)

    def _describe(self, named: NamedPin) -> dict:
        expires_in_s = named.pin.expires_s - self._core.clock.now_s()
        return {
            "pin_id": named.pin_id,
            "hard": named.is_hard,
            "tokens_requested": len(named.key),
            "tokens_pinned": self._core.tokens_under(named.key, named.pin),
            "expires_in_s": None if math.isinf(expires_in_s) else expires_in_s,
        }
