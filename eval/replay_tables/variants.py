"""The policy with a piece taken away or put in place of another. None of it is a switch of the product."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np

from radiximp.config import PolicyConfig
from radiximp.policy import reuse_law
from radiximp.policy.gittins import GittinsPolicy
from radiximp.policy.guard import Guard
from radiximp.policy.registry import POLICIES
from radiximp.policy.reuse_law import EDGES_S, LAST_EDGE_S

# Bins as the law has them: from each edge to the next, the last as long as it is old.
_WIDTHS_S = np.append(np.diff(EDGES_S), LAST_EDGE_S)
FEATURES = ("finish", "returns", "gap", "answer length")


class _Calm(Guard):
    """Compares, and never lets lru rank."""

    is_tripped = False


class Unguarded(GittinsPolicy):
    """The learned policy to the bitter end."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__(config)
        self.guard = _Calm()


def without(feature: str) -> type[GittinsPolicy]:
    """The policy whose classes do not know a feature."""
    place = FEATURES.index(feature)

    class Without(GittinsPolicy):
        def __init__(self, config: PolicyConfig) -> None:
            super().__init__(config)
            class_id = self.law.class_id
            self.law.class_id = lambda features: class_id(
                tuple(0 if number == place else value for number, value in enumerate(features))
            )

    return Without


def raw_hazard(hazards: np.ndarray) -> np.ndarray:
    """How readily it comes back at this very age."""
    return hazards


def windowed(window_s: float) -> Callable[[np.ndarray], np.ndarray]:
    """P(reuse within a fixed time)."""

    def index(hazards: np.ndarray) -> np.ndarray:
        edges = np.append(EDGES_S, EDGES_S[-1] + _WIDTHS_S[-1])
        total = np.concatenate([np.zeros((len(hazards), 1)), (hazards * _WIDTHS_S).cumsum(axis=1)], axis=1)
        until = np.stack([np.interp(EDGES_S + window_s, edges, row) for row in total])
        return -np.expm1(total[:, :-1] - until)

    return index


def whole_life(hazards: np.ndarray) -> np.ndarray:
    """P(reuse) / E[time held until it, or until the last age]: hits per space-time without the best time to stop."""
    reuse_here = -np.expm1(-hazards * _WIDTHS_S)
    probability, held_s = np.zeros((2, *hazards.shape))
    p = t = np.zeros(len(hazards))
    for age_bin in reversed(range(len(EDGES_S))):
        q = reuse_here[:, age_bin]
        p = q + (1 - q) * p
        t = q / hazards[:, age_bin] + (1 - q) * t
        probability[:, age_bin], held_s[:, age_bin] = p, t
    return probability / held_s


@dataclass(frozen=True, slots=True)
class Variant:
    """index: in place of `gittins_index`."""

    policy: type[GittinsPolicy] = GittinsPolicy
    index: Callable[[np.ndarray], np.ndarray] | None = None


VARIANTS: dict[str, Variant] = {
    **{f"without {feature}": Variant(policy=without(feature)) for feature in FEATURES},
    "no guard": Variant(policy=Unguarded),
    "no guard, raw hazard": Variant(policy=Unguarded, index=raw_hazard),
    "no guard, P(reuse within 60 s)": Variant(policy=Unguarded, index=windowed(60)),
    "no guard, P(reuse within 600 s)": Variant(policy=Unguarded, index=windowed(600)),
    "no guard, hits per space-time of the whole life (as LHD)": Variant(policy=Unguarded, index=whole_life),
}


@contextmanager
def applied(name: str) -> Iterator[None]:
    """While it lasts, `importance` in this process is the variant; "" changes nothing."""
    if not name:
        yield
        return
    variant = VARIANTS[name]
    entry = POLICIES["importance"]._replace(make=lambda config, seed: variant.policy(config))
    index = patch.object(reuse_law, "gittins_index", variant.index) if variant.index else nullcontext()
    with patch.dict(POLICIES, importance=entry), index:
        yield
