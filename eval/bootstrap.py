"""Intervals by resampling whole conversations (or questions, or prompts): what belongs together is drawn together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

NUM_RESAMPLES = 2000


def interval(values: np.ndarray) -> list[float]:
    """[mean, low, high] of a 95 % bootstrap over the values, one a question, a pair or a conversation."""
    rng = np.random.default_rng(0)
    means = values[rng.integers(0, len(values), (NUM_RESAMPLES, len(values)))].mean(1)
    return [float(values.mean()), *np.quantile(means, (0.025, 0.975)).tolist()]


def interval_of(
    groups: Sequence[Sequence[float]] | np.ndarray, statistic: Callable[[np.ndarray], float]
) -> list[float]:
    """[value, low, high] of a statistic of the column sums of [num_groups, num_columns]; groups are resampled.

    So a ratio of two sums (hits by requests, one policy's hits by another's) has the interval of the ratio.
    """
    sums, rng = np.asarray(groups, dtype=float), np.random.default_rng(0)
    drawn = rng.integers(0, len(sums), (NUM_RESAMPLES, len(sums)))
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.array([statistic(sums[rows].sum(0)) for rows in drawn])
        found = found[np.isfinite(found)]
        low, high = np.quantile(found, (0.025, 0.975)).tolist() if len(found) else (float("nan"),) * 2
        return [float(statistic(sums.sum(0))), low, high]


def shown(values: Sequence[float], digits: int = 2, factor: float = 1.0) -> str:
    """ "0.31 (0.28 … 0.35)"."""
    value, low, high = (f"{factor * number:.{digits}f}" for number in values)
    return f"{value} ({low} … {high})"
