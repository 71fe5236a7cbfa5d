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

    from radiximp.serving.tree.core import ImportanceTreeCore

MAX_PINS = 10_000
# Of all prompts together, held or not: a pin keeps its prompt's tokens.
MAX_PIN_TOKENS = 1 << 22
# Of them by requests' own hints.
MAX_HINTS = 1_000
_HINT = "hint"


@dataclass(eq=False)
class NamedPin:
    """A pin on one prompt of a call, and what was asked for."""

    pin_id: str
    prompt: int
    key: RadixKey
    pin: Pin
    is_hard: bool

    @property
    def is_hint(self) -> bool:
        """Whether a request asked for it, and no operator."""
        return self.pin_id == _HINT


def _last_use_s(named: NamedPin) -> float:
    return named.pin.last_use_s


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
        num_tokens = sum(len(named.key) for named in self._pins) + sum(map(len, keys))
        if num_tokens > MAX_PIN_TOKENS:
            raise ValueError(
                f"at most {MAX_PIN_TOKENS} tokens can be named by pins, {num_tokens} would be; remove some"
            )
        now_s = self._core.clock.now_s()
        expires_s = math.inf if ttl_s is None else now_s + ttl_s
        added = []
        for number, key in enumerate(keys):
            pin = Pin(expires_s, None if is_hard else ttl_s, last_use_s=now_s)
            added.append(self._place(NamedPin(pin_id, number, key, pin, is_hard)))
        return [self._describe(named) for named in added]

    def hint(self, key: RadixKey, ttl_s: float) -> int:
        """A request's own soft pin: it displaces other requests' only; returns the tokens that it lies on."""
        self._settle()
        hints = sorted((named for named in self._pins if named.is_hint), key=_last_use_s)
        if len(hints) >= MAX_HINTS:
            self._drop(hints[0])
        if len(self._pins) >= MAX_PINS:
            return 0
        now_s = self._core.clock.now_s()
        named = self._place(
            NamedPin(_HINT, 0, key, Pin(now_s + ttl_s, ttl_s, last_use_s=now_s), is_hard=False)
        )
        num_tokens = self._core.tokens_under(key, named.pin)
        if not num_tokens:
            self._drop(named)
        return num_tokens

    def _place(self, named: NamedPin) -> NamedPin:
        self._make_room(named.key, for_hint=named.is_hint)
        self._core.place_pin(named.key, named.pin)
        self._pins.append(named)
        return named

    def _make_room(self, key: RadixKey, for_hint: bool) -> None:
        """Displace the coldest soft pins, hints before operators', until the prefix fits; none for one that cannot fit."""
        core = self._core
        if core.unpinned_device_tokens(key) > core.pin_budget_tokens:
            return
        soft = [named for named in self._pins if named.is_hint or not (named.is_hard or for_hint)]
        for named in sorted(soft, key=lambda named: (not named.is_hint, _last_use_s(named))):
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

    def ids_of(self, pins: Sequence[Pin]) -> list[str]:
        """The calls that these pins were put on by."""
        return sorted({named.pin_id for named in self._pins if named.pin in pins})

    def num_pins(self) -> int:
        """Prompts under a pin that has not expired; changes nothing."""
        now_s = self._core.clock.now_s()
        return sum(named.pin.expires_s > now_s for named in self._pins)

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
