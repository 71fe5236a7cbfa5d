"""What transfers and prefills take on this machine, learned from the newest of them.

Seconds are a sum of costs at least 0 times what was moved or computed. Each fit is robust (a sample far off counts little),
recent (older samples fade, but of each size some are kept) and follows a change of speed: three samples in a row that are
all much slower, or all much faster, than predicted make it forget what was before. Plain Python arithmetic in a fixed
order: equal samples give equal bits on every rank.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from radiximp.cost.predict import PrefillModel, Transfer

_WINDOW = 16
# Weight of a sample after each further one.
_DECAY = 0.85
# Relative error from which a sample's pull stays constant.
_ROBUST_ERROR = 0.1
_ROUNDS = 3
# Pull towards the last fit, in samples. It decides only what samples leave open, as latency against rate at one size.
_PRIOR_SAMPLES = 0.05
# So many in a row, each off by more than this factor on the same side, are a change of speed.
_CHANGE_SAMPLES = 3
_CHANGE_FACTOR = 1.5
_ERRORS_KEPT = 64


class RobustFit:
    """seconds = sum of coefficient * feature, all coefficients at least 0. O(window) per sample.

    main: the feature that the very first sample is attributed to.
    """

    def __init__(self, num_features: int, main: int) -> None:
        self._main = main
        self._samples: list[tuple[tuple[float, ...], float]] = []
        self._change = 0
        self.num_samples = 0
        self.coefficients: list[float] = [0.0] * num_features
        self._steady = self.coefficients
        # (predicted before it was seen, measured)
        self.recent: deque[tuple[float, float]] = deque(maxlen=_ERRORS_KEPT)

    def seconds(self, features: Sequence[float]) -> float:
        """What the fit says; 0 before any sample."""
        return _dot(self.coefficients, features)

    def note(self, features: Sequence[float], seconds: float) -> None:
        """Learn from one sample. Raises ValueError unless it took a finite time above 0 and something was done."""
        if not (0 < seconds < math.inf and features[self._main] > 0 and min(features) >= 0):
            raise ValueError(f"expected seconds and {features=} above 0, got {seconds=}")
        if not self.num_samples:
            self.coefficients[self._main] = seconds / features[self._main]
        else:
            self.recent.append((self.seconds(features), seconds))
            self._note_direction(features, seconds)
        self.num_samples += 1
        self._samples.append((tuple(features), seconds))
        if len(self._samples) > _WINDOW:
            self._drop_one()
        prior = self.coefficients
        if abs(self._change) >= _CHANGE_SAMPLES:
            self._change = 0
            self._samples = self._samples[-_CHANGE_SAMPLES:]
            factor = statistics.median(took_s / _dot(self._steady, done) for done, took_s in self._samples)
            prior = [factor * coefficient for coefficient in self._steady]
        self.coefficients = self._fit(prior)

    def _drop_one(self) -> None:
        """Forget the oldest of the samples that are most alike: many small ones do not push out what a large one took."""
        # The newest may be a change of speed, and stay together.
        older = self._samples[:-_CHANGE_SAMPLES]
        kinds = [tuple(math.frexp(feature)[1] for feature in features) for features, _ in older]
        most = max(map(kinds.count, kinds))
        del self._samples[next(i for i, kind in enumerate(kinds) if kinds.count(kind) == most)]

    def _note_direction(self, features: Sequence[float], seconds: float) -> None:
        # Judged by the fit from before the first sample that was off: the newest may be half way already.
        if not self._change:
            self._steady = self.coefficients
        predicted = _dot(self._steady, features)
        if seconds > _CHANGE_FACTOR * predicted:
            self._change = max(self._change, 0) + 1
        elif predicted > _CHANGE_FACTOR * seconds:
            self._change = min(self._change, 0) - 1
        else:
            self._change = 0

    @property
    def median_error(self) -> float | None:
        """Median of |predicted - measured| / measured over the newest samples, each predicted before it was seen."""
        if not self.recent:
            return None
        return statistics.median(abs(predicted - seconds) / seconds for predicted, seconds in self.recent)

    def _fit(self, prior: list[float]) -> list[float]:
        """Reweighted least squares of relative errors, drawn weakly towards `prior`."""
        num, count = len(prior), len(self._samples)
        means = [sum(features[j] for features, _ in self._samples) / count or 1.0 for j in range(num)]
        samples = [
            ([f / mean for f, mean in zip(features, means, strict=True)], seconds, _DECAY**age)
            for age, (features, seconds) in enumerate(reversed(self._samples))
        ]
        found: list[float] | None = None
        for _ in range(_ROUNDS):
            matrix = [[0.0] * num for _ in range(num)]
            target = [0.0] * num
            total_weight = 0.0
            for features, seconds, weight in samples:
                predicted = seconds if found is None else _dot(found, features)
                scale = max(seconds, predicted)
                weight /= scale * max(scale, abs(predicted - seconds) / _ROBUST_ERROR)
                total_weight += weight
                for i in range(num):
                    weighted = weight * features[i]
                    target[i] += weighted * seconds
                    for j in range(i + 1):
                        matrix[i][j] += weighted * features[j]
            for i in range(num):
                # As much as so many samples say of this cost: few say much of what only the large ones show.
                pull = _PRIOR_SAMPLES / count * (matrix[i][i] or total_weight)
                matrix[i][i] += pull
                target[i] += pull * prior[i] * means[i]
                for j in range(i):
                    matrix[j][i] = matrix[i][j]
            found = _non_negative(matrix, target)
        return [value / mean for value, mean in zip(found, means, strict=True)]


def _dot(coefficients: Sequence[float], features: Sequence[float]) -> float:
    return sum(c * f for c, f in zip(coefficients, features, strict=True))


def _non_negative(matrix: list[list[float]], target: list[float]) -> list[float]:
    """argmin of x'Ax/2 - b'x over x >= 0 for a positive definite A: the best of all choices of what is above 0."""
    num = len(target)
    best, best_value = [0.0] * num, 0.0
    for chosen in range(2**num - 1, 0, -1):
        free = [j for j in range(num) if chosen >> j & 1]
        solved = _solve([[matrix[i][j] for j in free] for i in free], [target[i] for i in free])
        if min(solved) < 0:
            continue
        value = -sum(target[i] * x for i, x in zip(free, solved, strict=True)) / 2
        if value < best_value:
            best, best_value = [0.0] * num, value
            for j, x in zip(free, solved, strict=True):
                best[j] = x
        if len(free) == num:
            break  # the minimum without a constraint
    return best


def _solve(matrix: list[list[float]], target: list[float]) -> list[float]:
    """x with Ax = b, by elimination; A is positive definite."""
    rows = [[*row, value] for row, value in zip(matrix, target, strict=True)]
    num = len(rows)
    for i in range(num):
        for k in range(i + 1, num):
            factor = rows[k][i] / rows[i][i]
            rows[k] = [a - factor * b for a, b in zip(rows[k], rows[i], strict=True)]
    solution = [0.0] * num
    for i in reversed(range(num)):
        known = sum(rows[i][j] * solution[j] for j in range(i + 1, num))
        solution[i] = (rows[i][num] - known) / rows[i][i]
    return solution


class TransferCalibration:
    """Latency, seconds per token and wait of the transfers from one tier."""

    def __init__(self) -> None:
        self.fit = RobustFit(2, main=1)
        self.queue_s = 0.0

    def note(self, num_tokens: int, seconds: float, queue_s: float = 0.0) -> None:
        """One transfer: seconds from its first to its last byte, queue_s from asking until the first."""
        self.fit.note((1.0, float(num_tokens)), seconds)
        self.queue_s += (1 - _DECAY if self.fit.num_samples > 1 else 1.0) * (queue_s - self.queue_s)

    @property
    def is_known(self) -> bool:
        return self.fit.num_samples > 0

    @property
    def latency_s(self) -> float:
        return self.fit.coefficients[0]

    @property
    def s_per_token(self) -> float:
        return self.fit.coefficients[1]

    def transfer(self, bytes_per_token: float, queue_s: float | None = None) -> Transfer:
        """As `predict` takes it; queue_s: what is waited for now, the usual wait where that is not known."""
        bandwidth = bytes_per_token / self.s_per_token if self.s_per_token > 0 else math.inf
        return Transfer(bandwidth, self.latency_s, self.queue_s if queue_s is None else queue_s)


@dataclass(frozen=True)
class PrefillBatch:
    """What a prefill batch computed: new tokens, and pairs of query and key under a causal mask."""

    num_tokens: int
    num_pairs: float

    @classmethod
    def of(cls, requests: Sequence[tuple[int, int]]) -> PrefillBatch:
        """requests: (new tokens, tokens before them) of each."""
        pairs = sum(new * (depth + new / 2) for new, depth in requests)
        return cls(sum(new for new, _ in requests), pairs)


class PrefillCalibration:
    """Seconds of a batch, per token, and per pair of query and key: prefill rate by length and depth."""

    def __init__(self) -> None:
        self.fit = RobustFit(3, main=1)

    def note(self, batch: PrefillBatch, seconds: float) -> None:
        """One batch and how long it took."""
        self.fit.note((1.0, float(batch.num_tokens), batch.num_pairs), seconds)

    @property
    def is_known(self) -> bool:
        return self.fit.num_samples > 0

    def model(self, depth_tokens: int = 0, others: PrefillBatch | None = None) -> PrefillModel:
        """Of a prompt after `depth_tokens` that are there, in one batch with `others`."""
        overhead_s, s_per_token, s_per_pair = self.fit.coefficients
        if others is not None:
            overhead_s += others.num_tokens * s_per_token + others.num_pairs * s_per_pair
        return PrefillModel(s_per_token + depth_tokens * s_per_pair, s_per_pair, True, overhead_s)
