"""The control: observed densities dealt to other nodes, so that only their connection with the nodes is lost."""

from __future__ import annotations

import random
from collections.abc import Sequence

_MAX_KEPT = 1024


class Shuffler:
    """Deals in an order that depends on the calls alone, hence alike on every rank. O(1) per density."""

    def __init__(self) -> None:
        self._random = random.Random(0)
        self._kept: list[float] = []

    def deal(self, densities: Sequence[float]) -> list[float]:
        """As many densities, each seen before or just now; a value given out is replaced by a new one."""
        dealt = []
        for density in densities:
            if len(self._kept) < _MAX_KEPT:
                self._kept.append(density)
                dealt.append(self._random.choice(self._kept))
                continue
            place = self._random.randrange(_MAX_KEPT)
            dealt.append(self._kept[place])
            self._kept[place] = density
        return dealt
