"""How much a feature of a class tells of reuse: bits per reuse, beyond what the coarser class tells."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np

# Fewer returns than this say nothing.
_MIN_REUSES = 100.0


def information_gain_bits(
    groups: Sequence[Hashable], reuse: np.ndarray, exposure_s: np.ndarray, span_tokens: float
) -> float | None:
    """Mean over reuses of log2(hazard of its class / hazard of its group), what chance gives taken off, at least 0.

    groups: [num_classes], the coarser class that each is part of. reuse, exposure_s: [num_classes, num_bins], tokens used again and token-seconds
    idle. span_tokens: tokens that come and go together, so that chance is judged by independent reuses. None below 100 of them.
    """
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    if not numbers or reuse.sum() < _MIN_REUSES * span_tokens:
        return None
    group = np.array([numbers[name] for name in groups])
    of_group = np.zeros((2, len(numbers), reuse.shape[1]))
    np.add.at(of_group, (slice(None), group), np.stack([reuse, exposure_s]))
    group_reuse, group_exposure_s = of_group[:, group]
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = reuse * np.log2(reuse / exposure_s * group_exposure_s / group_reuse)
    gain = np.where((reuse > 0) & (exposure_s > 0), terms, 0.0).sum() / reuse.sum()
    # Twice the log-likelihood ratio is chi-squared where the feature tells nothing, with a degree for each further class.
    is_cell = exposure_s > 0
    per_group = np.zeros((len(numbers), reuse.shape[1]))
    np.add.at(per_group, group, is_cell)
    degrees = np.maximum(per_group - 1, 0)[of_group[0] > 0].sum()
    by_chance = degrees / (2 * math.log(2)) / (reuse.sum() / span_tokens)
    return float(max(gain - by_chance, 0.0))
