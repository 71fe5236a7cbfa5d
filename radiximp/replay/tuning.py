"""From rows to advice: where more memory stops paying, and whether a setting is worth changing.

Knee: the size whose hit rate is farthest above the chord from the smallest to the largest size, with
capacity on a logarithmic axis and both axes scaled to 0..1 (Satopaa et al., Kneedle, 2011).

Noise of a gain: with several seeds, the spread (highest less lowest) of the paired gains over the seeds; with one, or where
nothing depends on the seed, their spread over the quarters of the trace. A setting is worth changing if its gain exceeds both the noise and `MIN_GAIN`. Of
changes that do nothing but noise, 1 in 7 would pass on two seeds, 1 in 25 on three, 1 in 100 on four or on quarters; quarters
are less alike than seeds, so they err towards "no".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from statistics import fmean

from radiximp.config import PolicyConfig
from radiximp.replay.run import Row

FACTOR = 4
# Half a point: less is not worth a flag, however sure.
MIN_GAIN = 0.005
# A curve that stays this close to its chord has no knee.
_MIN_KNEE_DISTANCE = 0.05
# What a replay can feel: traces carry no attention, and nothing pins.
_SETTINGS = {
    "reuse": ("law_half_life_s", "prior_spans", "burst_s", "ghost_factor", "trim_tokens"),
    "lrfu": ("half_life_s", "max_uses", "burst_s", "ghost_factor", "trim_tokens"),
}


def knee(capacities: Sequence[float], rates: Sequence[float | None]) -> int | None:
    """The index of the knee of a curve, or None where it has none: under three sizes, flat, or no bend.

    capacities: [n] ascending, above 0. O(n).
    """
    if (
        len(capacities) < 3
        or any(rate is None for rate in rates)
        or rates[-1] <= rates[0]
        or capacities[0] == capacities[-1]
    ):
        return None
    span, rise = math.log(capacities[-1] / capacities[0]), rates[-1] - rates[0]
    above = [
        (rate - rates[0]) / rise - math.log(capacity / capacities[0]) / span
        for capacity, rate in zip(capacities, rates, strict=True)
    ]
    best = max(range(len(above)), key=above.__getitem__)
    return best if above[best] >= _MIN_KNEE_DISTANCE else None


def variants(config: PolicyConfig, page_tokens: int) -> Iterator[tuple[str, float, PolicyConfig]]:
    """(setting, value, configuration) for each setting a factor up and down, one at a time, within its range.

    Leaves out what replays the same: a trim within the same number of pages, and a setting that is 0.
    """
    known = {field.name: field for field in fields(config)}
    for key in () if config.is_lru else _SETTINGS[config.score]:
        now = getattr(config, key)
        for scaled in (now / FACTOR, now * FACTOR):
            limits = known[key].metadata
            value = min(max(scaled, limits["low"]), limits["high"])
            if key == "trim_tokens":
                value = int(value)
                if max(1, value // page_tokens) == max(1, now // page_tokens):
                    continue
            if value != now and now:
                yield key, value, replace(config, **{key: value})


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one setting gains over the configuration that was given; gain and noise are shares, not points.

    gain and noise are None where no tokens were asked for. samples: the paired gains that the noise is read from.
    """

    setting: str
    value: float
    default: float
    gain: float | None
    noise: float | None
    samples: tuple[float, ...]

    @property
    def is_worth_changing(self) -> bool:
        """Whether the gain is more than the noise, and more than is not worth a flag."""
        return self.gain is not None and self.gain > max(self.noise, MIN_GAIN)


def judged(
    setting: str, value: float, default: float, changed: Sequence[Row], base: Sequence[Row]
) -> Verdict:
    """The verdict on rows of a changed setting against those without, a pair per seed."""
    pairs = list(zip(changed, base, strict=True))
    gains = [one.hit_rate - other.hit_rate for one, other in pairs if one.hit_rate is not None]
    samples = gains
    if len({(one.prompt_tokens, one.hit_tokens, other.hit_tokens) for one, other in pairs}) == 1:
        rates = zip(changed[0].part_rates(), base[0].part_rates(), strict=True)
        samples = [one - other for one, other in rates if one is not None]
    if not gains or len(samples) < 2:
        return Verdict(setting, value, default, None, None, tuple(samples))
    return Verdict(setting, value, default, fmean(gains), max(samples) - min(samples), tuple(samples))


def conclusion(verdicts: Sequence[Verdict], given: str = "the defaults are") -> str:
    """One sentence: which change pays, or how little any of them would."""
    if not verdicts:
        return "the configuration ranks as lru does: there is nothing to tune"
    worth = [verdict for verdict in verdicts if verdict.is_worth_changing]
    if worth:
        best = max(worth, key=lambda verdict: verdict.gain)
        return (
            f"worth changing: {best.setting} {best.default:g} -> {best.value:g} "
            f"({100 * best.gain:+.1f} points, noise {100 * best.noise:.1f}); confirm it on another trace"
        )
    known = [verdict.gain for verdict in verdicts if verdict.gain is not None]
    if not known:
        return "too little was asked for after the warm-up for a setting to be judged"
    variants = f"the best of {len(known)} variants" if len(known) > 1 else "the one variant"
    return f"{given} within {100 * max(0.0, *known):.1f} points of {variants}"
