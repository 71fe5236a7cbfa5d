"""How likely idle content is to be used again, learned per class from what came back and what did not.

A *span* is a number of tokens of one class, idle since one instant. It ends where its tokens are used again; what is
still idle counts as exposure, evicted or not. Hazard per class and age with back-off from coarse to fine
classes; from it the Gittins index: the best ratio of reuse probability to expected time held.
Whittle/Gittins (1979); Bayesian smoothing towards the coarser class.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

FIRST_EDGE_S = 0.25
LAST_EDGE_S = 9 * 3600.0
_NUM_BINS = 2 + round(2 * np.log2(LAST_EDGE_S / FIRST_EDGE_S))
# Age at which a bin starts: 0, then factor sqrt 2 from 0.25 s to 9 h.
EDGES_S = np.concatenate([[0.0], FIRST_EDGE_S * np.sqrt(2.0) ** np.arange(_NUM_BINS - 1)])
_WIDTHS_S = np.concatenate([np.diff(EDGES_S), [LAST_EDGE_S]])
# Before anything is known, older is less likely to come back: a cold start ranks as LRU.
_COLD_HAZARD = 0.3 / (EDGES_S + _WIDTHS_S / 2 + 1)

Class = tuple[int, ...]


def bin_of(age_s: float) -> int:
    """The bin an age falls in."""
    return max(0, int(np.searchsorted(EDGES_S, age_s, side="right")) - 1)


class ReuseLaw:
    """Statistics of every class seen and the index tables made from them.

    open, close: O(1). refresh: O(spans + classes x bins^2), vectorised; the caller decides when.
    """

    def __init__(self, half_life_s: float, prior_spans: float, max_spans: int, max_classes: int) -> None:
        self._half_life_s = half_life_s
        self._prior_spans = prior_spans
        self._max_classes = max_classes
        self.classes: list[Class] = []
        self._class_ids: dict[Class, int] = {}
        self.reuse = np.zeros((64, _NUM_BINS))
        self.exposure = np.zeros((64, _NUM_BINS))
        self._span_class = np.full(max_spans, -1, dtype=np.int32)
        self._span_open_s = np.zeros(max_spans)
        self._span_tokens = np.zeros(max_spans)
        self._next_span = 0
        self._stats_s = 0.0
        self.num_spans = 0
        self.span_tokens = 0.0
        self.tables = np.zeros((0, _NUM_BINS))
        self.num_refreshes = 0

    def class_id(self, features: Class) -> int:
        """The id of a class, given by its features from coarse to fine."""
        class_id = self._class_ids.get(features)
        if class_id is None:
            if len(self.classes) >= self._max_classes:
                return self._class_ids[features[:1]] if features[:1] in self._class_ids else 0
            class_id = self._class_ids[features] = len(self.classes)
            self.classes.append(features)
            if class_id >= len(self.reuse):
                self.reuse = np.concatenate([self.reuse, np.zeros_like(self.reuse)])
                self.exposure = np.concatenate([self.exposure, np.zeros_like(self.exposure)])
        return class_id

    # ---- spans ----

    def open(self, class_id: int, now_s: float, num_tokens: float) -> int:
        """Tokens of a class fell idle; returns the span's number."""
        span = self._next_span
        slot = span % len(self._span_class)
        if self._span_class[slot] >= 0 and self._span_tokens[slot] > 0:
            self._expose(slot, now_s, self._span_tokens[slot])
        self._span_class[slot] = class_id
        self._span_open_s[slot] = now_s
        self._span_tokens[slot] = num_tokens
        self._next_span += 1
        self.num_spans += 1
        self.span_tokens += num_tokens
        return span

    def close(self, span: int, now_s: float, num_tokens: float) -> None:
        """`num_tokens` of the span were used again; no effect if it was forgotten meanwhile."""
        if span <= self._next_span - 1 - len(self._span_class) or span < 0:
            return
        slot = span % len(self._span_class)
        num_tokens = min(num_tokens, self._span_tokens[slot])
        if num_tokens <= 0:
            return
        self._span_tokens[slot] -= num_tokens
        age_s = now_s - self._span_open_s[slot]
        self.reuse[self._span_class[slot], bin_of(age_s)] += num_tokens * self._boost(now_s)
        self._expose(slot, now_s, num_tokens)

    def _boost(self, now_s: float) -> float:
        """Newer evidence weighs more, instead of older less: all of it is rescaled at a refresh."""
        return 2.0 ** ((now_s - self._stats_s) / self._half_life_s)

    def _expose(self, slot: int, now_s: float, num_tokens: float) -> None:
        age_s = now_s - self._span_open_s[slot]
        last = bin_of(age_s)
        weight = num_tokens * 2.0 ** ((self._span_open_s[slot] - self._stats_s) / self._half_life_s)
        row = self.exposure[self._span_class[slot]]
        row[:last] += weight * self._aged_widths[:last]
        row[last] += weight * (age_s - EDGES_S[last]) * self._edge_boost[last]

    @property
    def _edge_boost(self) -> np.ndarray:
        return 2.0 ** (np.minimum(EDGES_S / self._half_life_s, 60))

    @property
    def _aged_widths(self) -> np.ndarray:
        return _WIDTHS_S * self._edge_boost

    # ---- tables ----

    def refresh(self, now_s: float) -> None:
        """Bring hazards and index tables up to now."""
        scale = 1 / self._boost(now_s)
        self.reuse *= scale
        self.exposure *= scale
        self._stats_s = now_s
        num_classes = len(self.classes)
        reuse = self.reuse[:num_classes]
        exposure = self.exposure[:num_classes] + self._idle_exposure(now_s, num_classes)
        self.hazards = self._smoothed(reuse, exposure)
        self.tables = gittins(self.hazards)
        self.num_refreshes += 1

    def _idle_exposure(self, now_s: float, num_classes: int) -> np.ndarray:
        is_open = (self._span_tokens > 0) & (self._span_class >= 0)
        age_s = now_s - self._span_open_s[is_open]
        weight = self._span_tokens[is_open] * 2.0 ** (-age_s / self._half_life_s)
        last = np.maximum(np.searchsorted(EDGES_S, age_s, side="right") - 1, 0)
        cell = self._span_class[is_open] * _NUM_BINS + last
        shape = (num_classes, _NUM_BINS)
        weights = np.bincount(cell, weight, num_classes * _NUM_BINS).reshape(shape)
        partial = np.bincount(cell, weight * (age_s - EDGES_S[last]), num_classes * _NUM_BINS).reshape(shape)
        passed = weights[:, ::-1].cumsum(axis=1)[:, ::-1] - weights
        return (passed * _WIDTHS_S + partial) * self._edge_boost

    def _smoothed(self, reuse: np.ndarray, exposure: np.ndarray) -> np.ndarray:
        prior = self._prior_spans * self.span_tokens / max(self.num_spans, 1)
        depth = max(len(features) for features in self.classes)
        hazards = np.broadcast_to(_COLD_HAZARD, reuse.shape)
        for level in range(depth + 1):
            ids: dict[Class, int] = {}
            group = np.array([ids.setdefault(features[:level], len(ids)) for features in self.classes])
            sums = np.zeros((2, len(ids), reuse.shape[1]))
            np.add.at(sums[0], group, reuse)
            np.add.at(sums[1], group, exposure)
            hazards = (sums[0][group] + prior) / (sums[1][group] + prior / hazards)
        return hazards


def gittins(hazards: np.ndarray) -> np.ndarray:
    """Index of each class at each age bin: max over W of P(reuse within W) / E[time held until reuse or W].

    hazards: [num_classes, num_bins] float64, reuses per second; returns the same shape, per second.
    """
    alive_hazard = -np.expm1(-hazards * _WIDTHS_S)
    held = alive_hazard / hazards
    num_classes, num_bins = hazards.shape
    best = np.zeros_like(hazards)
    probability = np.zeros_like(hazards)
    time_s = np.zeros_like(hazards)
    survival = np.ones_like(hazards)
    for step in range(num_bins):
        width = num_bins - step
        q, t = alive_hazard[:, step:], held[:, step:]
        probability[:, :width] += survival[:, :width] * q
        time_s[:, :width] += survival[:, :width] * t
        survival[:, :width] *= 1 - q
        np.maximum(best[:, :width], probability[:, :width] / time_s[:, :width], out=best[:, :width])
    return best


def features_of(*values: int) -> Class:
    """A class from its features, coarse to fine."""
    return tuple(values)


__all__ = ["EDGES_S", "ReuseLaw", "bin_of", "features_of", "gittins"]
_ = Sequence
