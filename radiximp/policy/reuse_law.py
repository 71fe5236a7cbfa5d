"""How likely idle content is to be used again, learned per class from what came back and what did not.

A *span* is a number of tokens of one class that fell idle at one instant. It ends where its tokens are used
again; what is still idle counts as exposure, evicted or not. Reuses and exposure give a hazard per class and age, with
back-off from coarse to fine classes, and hazards give the Gittins index: the best ratio of reuse
probability to expected time held (Gittins, Bandit Processes and Dynamic Allocation Indices, 1979).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

FIRST_EDGE_S = 0.25
LAST_EDGE_S = 9 * 3600.0
NUM_BINS = 2 + round(2 * np.log2(LAST_EDGE_S / FIRST_EDGE_S))
# Age at which each bin starts: 0, then by factors of sqrt 2 from 0.25 s to 9 h.
_POWERS = np.arange(NUM_BINS - 1)
EDGES_S = np.concatenate([[0.0], FIRST_EDGE_S * 2.0 ** (_POWERS // 2) * np.sqrt(2.0) ** (_POWERS % 2)])
_WIDTHS_S = np.concatenate([np.diff(EDGES_S), [LAST_EDGE_S]])
# Before anything is known, older is less likely to come back: a cold start ranks as lru does.
_COLD_HAZARD = 0.3 / (EDGES_S + _WIDTHS_S / 2 + 1)
_EDGES = EDGES_S.tolist()

# The values of a class's features, from the most telling to the finest.
Features = tuple[int, ...]


def bin_of(age_s: float) -> int:
    """The bin that an age in seconds falls in."""
    return max(0, bisect_right(_EDGES, age_s) - 1)


class ReuseLaw:
    """Evidence per class and the index tables made from it; memory is bounded by spans and classes.

    open, close: O(bins). refresh: O(spans + classes x bins^2), vectorised; the caller says when.
    """

    def __init__(
        self,
        half_life_s: float,
        prior_spans: float,
        max_spans: int,
        max_classes: int,
        expect: Callable[[Features], np.ndarray | float] = lambda features: 1.0,
    ) -> None:
        """expect: how much more readily than its coarser class a class comes back at each age, before there is evidence."""
        self._expect = expect
        self._half_life_s = half_life_s
        self._prior_spans = prior_spans
        self._max_classes = max_classes
        self._edge_boost = 2.0 ** np.minimum(EDGES_S / half_life_s, 60)
        self._boosted_widths_s = _WIDTHS_S * self._edge_boost
        self._classes: dict[Features, int] = {}
        self._levels: list[_Level] = []
        self._reuse = np.zeros((64, NUM_BINS))
        self._exposure_s = np.zeros((64, NUM_BINS))
        self._span_class = np.zeros(max_spans, dtype=np.int32)
        self._span_open_s = np.zeros(max_spans)
        self._span_tokens = np.zeros(max_spans)
        # [num_classes, num_bins] uses per second, as of the last refresh.
        self.hazards = np.zeros((0, NUM_BINS))
        self.num_spans = 0
        self._opened_tokens = 0.0
        self._adopted_span_tokens = 1.0
        self._rescaled_s = 0.0

    @property
    def num_classes(self) -> int:
        """Classes seen so far."""
        return len(self._classes)

    def class_id(self, features: Features) -> int:
        """The number of a class; beyond the bound, that of the coarsest class like it."""
        class_id = self._classes.get(features)
        if class_id is not None:
            return class_id
        if len(self._classes) >= self._max_classes:
            alike = (number for known, number in self._classes.items() if known[:1] == features[:1] and known)
            return next(alike, 0)
        class_id = self._classes[features] = len(self._classes)
        if class_id >= len(self._reuse):
            self._reuse = np.concatenate([self._reuse, np.zeros_like(self._reuse)])
            self._exposure_s = np.concatenate([self._exposure_s, np.zeros_like(self._exposure_s)])
        return class_id

    def open(self, class_id: int, now_s: float, num_tokens: float) -> int:
        """`num_tokens` of a class fell idle; returns the span's number. The oldest span is forgotten for it."""
        span = self.num_spans
        slot = span % len(self._span_class)
        if self._span_tokens[slot] > 0:
            self._expose(slot, now_s, self._span_tokens[slot])
        self._span_class[slot] = class_id
        self._span_open_s[slot] = now_s
        self._span_tokens[slot] = num_tokens
        self.num_spans += 1
        self._opened_tokens += num_tokens
        return span

    def close(self, span: int, now_s: float, num_tokens: float) -> None:
        """`num_tokens` of a span were used again; no effect on a span that was forgotten."""
        if span < 0 or span < self.num_spans - len(self._span_class):
            return
        slot = span % len(self._span_class)
        num_tokens = min(num_tokens, self._span_tokens[slot])
        if num_tokens <= 0:
            return
        self._span_tokens[slot] -= num_tokens
        age_bin = bin_of(now_s - self._span_open_s[slot])
        self._reuse[self._span_class[slot], age_bin] += num_tokens * self._boost(now_s)
        self._expose(slot, now_s, num_tokens)

    def retract(self, span: int, num_tokens: float) -> None:
        """`num_tokens` of a span were not idle after all; nothing is learned from them."""
        slot = span % len(self._span_class)
        if span >= self.num_spans - len(self._span_class):
            self._span_tokens[slot] = max(self._span_tokens[slot] - num_tokens, 0.0)

    def forget(self) -> None:
        """Drop all evidence; classes and spans keep their numbers, which nodes hold."""
        self._reuse[:] = 0
        self._exposure_s[:] = 0
        self._span_tokens[:] = 0

    def end_spans(self, now_s: float) -> None:
        """Count what is idle up to now, and watch it no longer."""
        if self.num_classes:
            self._exposure_s[: self.num_classes] += self._idle_exposure_s(now_s) * self._boost(now_s)
        self._span_tokens[:] = 0

    def evidence(self, now_s: float) -> tuple[list[Features], np.ndarray, np.ndarray]:
        """(classes, reused tokens, idle token-seconds) as of now, each [num_classes, num_bins]; changes nothing."""
        scale, num_classes = 1 / self._boost(now_s), self.num_classes
        exposure_s = self._exposure_s[:num_classes] * scale + self._idle_exposure_s(now_s)
        return list(self._classes), self._reuse[:num_classes] * scale, exposure_s

    def adopt(
        self, classes: list[Features], reuse: np.ndarray, exposure_s: np.ndarray, mean_span_tokens: float
    ) -> None:
        """Start from evidence that another law gathered; this one must not have seen a span."""
        if self.num_spans:
            raise ValueError("a law that has seen uses cannot adopt another's evidence")
        self._classes = {features: number for number, features in enumerate(classes[: self._max_classes])}
        size = max(64, len(self._classes))
        self._levels = []
        self._reuse, self._exposure_s = np.zeros((2, size, NUM_BINS))
        self._reuse[: self.num_classes] = reuse[: self.num_classes]
        self._exposure_s[: self.num_classes] = exposure_s[: self.num_classes]
        self._adopted_span_tokens = mean_span_tokens

    @property
    def mean_span_tokens(self) -> float:
        """Average tokens of a span, which is the unit of the prior's strength."""
        if not self.num_spans:
            return self._adopted_span_tokens
        return max(self._opened_tokens, 1.0) / self.num_spans

    def _boost(self, now_s: float) -> float:
        # Newer evidence weighs more, instead of older less; a refresh scales all of it back.
        return 2.0 ** min((now_s - self._rescaled_s) / self._half_life_s, 500)

    def _expose(self, slot: int, now_s: float, num_tokens: float) -> None:
        """Count the time that tokens of a span spent idle in each bin."""
        age_s = max(now_s - self._span_open_s[slot], 0.0)
        last = bin_of(age_s)
        weight = num_tokens * self._boost(self._span_open_s[slot])
        row = self._exposure_s[self._span_class[slot]]
        row[:last] += weight * self._boosted_widths_s[:last]
        row[last] += weight * (age_s - _EDGES[last]) * self._edge_boost[last]

    def refresh(self, now_s: float) -> np.ndarray:
        """[num_classes, num_bins] float64: the index of each class at each age, per second, as of now."""
        scale = 1 / self._boost(now_s)
        self._reuse *= scale
        self._exposure_s *= scale
        self._rescaled_s = now_s
        exposure_s = self._exposure_s[: self.num_classes] + self._idle_exposure_s(now_s)
        self.hazards = self._smoothed(self._reuse[: self.num_classes], exposure_s)
        return gittins_index(self.hazards)

    def _idle_exposure_s(self, now_s: float) -> np.ndarray:
        """Token-seconds in each bin of what is idle now."""
        is_open = self._span_tokens > 0
        age_s = np.maximum(now_s - self._span_open_s[is_open], 0.0)
        weight = self._span_tokens[is_open] * 2.0 ** (-age_s / self._half_life_s)
        last = np.maximum(np.searchsorted(EDGES_S, age_s, side="right") - 1, 0)
        cell = self._span_class[is_open] * NUM_BINS + last
        shape, num_cells = (self.num_classes, NUM_BINS), self.num_classes * NUM_BINS
        here = np.bincount(cell, weight, num_cells).reshape(shape)
        partial_s = np.bincount(cell, weight * (age_s - EDGES_S[last]), num_cells).reshape(shape)
        passed = here[:, ::-1].cumsum(axis=1)[:, ::-1] - here
        return (passed * _WIDTHS_S + partial_s) * self._edge_boost

    def _smoothed(self, reuse: np.ndarray, exposure_s: np.ndarray) -> np.ndarray:
        """Hazards: each class's evidence, backed off to the class without its last feature, and so on."""
        prior = self._prior_spans * self.mean_span_tokens
        hazards = np.broadcast_to(_COLD_HAZARD, reuse.shape)
        if not self._levels or len(self._levels[0].group) != len(self._classes):
            self._levels = _levels_of(list(self._classes), self._expect)
        for level in self._levels:
            reuses, exposed_s = np.zeros((2, level.num_groups, NUM_BINS))
            np.add.at(reuses, level.group, reuse)
            np.add.at(exposed_s, level.group, exposure_s)
            hazards = hazards * level.expected
            learned = (reuses[level.group] + prior) / (exposed_s[level.group] + prior / hazards)
            hazards = np.where(level.is_divided, learned, hazards)
        return hazards


@dataclass(frozen=True, slots=True)
class _Level:
    """All classes cut to their first features; made anew only when a class is.

    group: [num_classes] int, which of the cut classes each is in. expected: [num_classes, num_bins].
    is_divided: [num_classes, 1] bool; the same evidence must not count again where a feature did not divide the class.
    """

    group: np.ndarray
    num_groups: int
    expected: np.ndarray
    is_divided: np.ndarray


def _levels_of(classes: Sequence[Features], expect: Callable[[Features], np.ndarray | float]) -> list[_Level]:
    """From no feature to all of them."""
    levels = []
    num_pooled = np.zeros(len(classes))
    for length in range(max(map(len, classes)) + 1):
        cut = [features[:length] for features in classes]
        numbers = {features: number for number, features in enumerate(dict.fromkeys(cut))}
        group = np.array([numbers[features] for features in cut])
        expected = np.array([expect(features) * np.ones(NUM_BINS) for features in cut])
        was_pooled, num_pooled = num_pooled, np.bincount(group)[group]
        levels.append(_Level(group, len(numbers), expected, (num_pooled != was_pooled)[:, None]))
    return levels


def gittins_index(hazards: np.ndarray) -> np.ndarray:
    """Max over W of P(reuse within W) / E[time held until reuse or W], from the start of each bin.

    hazards: [num_classes, num_bins] float64, reuses per second; the result has that shape and unit.
    """
    reuse_here = -np.expm1(-hazards * _WIDTHS_S)
    held_here_s = reuse_here / hazards
    best, probability, held_s = np.zeros((3, *hazards.shape))
    survival = np.ones_like(hazards)
    for step in range(NUM_BINS):
        width = NUM_BINS - step
        q, t = reuse_here[:, step:], held_here_s[:, step:]
        probability[:, :width] += survival[:, :width] * q
        held_s[:, :width] += survival[:, :width] * t
        survival[:, :width] *= 1 - q
        np.maximum(best[:, :width], probability[:, :width] / held_s[:, :width], out=best[:, :width])
    return best
