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
    sums = np.asarray(groups, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        return interval_over(len(sums), lambda chosen: statistic(sums[chosen].sum(0)))


def interval_over(
    num_groups: int, statistic: Callable[[np.ndarray], float], num_resamples: int = NUM_RESAMPLES
) -> list[float]:
    """[value, low, high] of a statistic of the groups whose numbers it is given; NaN where no resample has a finite one."""
    drawn = np.random.default_rng(0).integers(0, num_groups, (num_resamples, num_groups))
    found = np.array([statistic(chosen) for chosen in drawn])
    found = found[np.isfinite(found)]
    low, high = np.quantile(found, (0.025, 0.975)).tolist() if len(found) else (float("nan"),) * 2
    return [float(statistic(np.arange(num_groups))), low, high]


def shown(values: Sequence[float], digits: int = 2, factor: float = 1.0) -> str:
    """ "0.31 (0.28 … 0.35)"."""
    value, low, high = (f"{factor * number:.{digits}f}" for number in values)
    return f"{value} ({low} … {high})"
