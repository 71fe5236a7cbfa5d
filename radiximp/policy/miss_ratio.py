"""What a cache of another size would hit, for the traffic that is there: sampled reuse distances in constant memory.

Pages are divided into units of up to 16 tokens, and a unit is sampled by the hash of its whole prefix, so it is either always or
never looked at (Waldspurger et al., Efficient MRC Construction with SHARDS, 2015). The distance of a use is how many distinct units
were used since the last use of that one; a cache under lru that drops the tails of paths first hits exactly the uses whose
distance is below its size. Large pages are divided because a few large ones say less than many small ones.

The model is lru over pages, all tiers as one, requests that are over at once. Nothing here touches the tree or its policy.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

# Buckets of distance, by factors of 2^(1/8): a size between two edges is interpolated.
_PER_OCTAVE = 8
_NUM_BUCKETS = 44 * _PER_OCTAVE
# Independent parts of the sample, by hash: how much they differ says how far the whole may be off.
_NUM_PARTS = 8
_UNIT_TOKENS = 16
_FIRST_USES = 1 << 12
_MAX_WEIGHT = 2.0**64
# More samples than this are not needed at a rate above the one asked for.
_EARLY_SAMPLES = 1 << 12
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def _mixed(values: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser, elementwise over uint64."""
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return values ^ (values >> np.uint64(31))


@cache
def _weights(num_ids: int) -> np.ndarray:
    """[num_ids] uint64, odd: what an id counts at each place."""
    return _mixed(np.arange(1, num_ids + 1, dtype=np.uint64) * _STEP) | np.uint64(1)


def unit_tokens_of(page_tokens: int) -> int:
    """Tokens of a unit: the largest part of a page, 16 at most, that divides it."""
    return math.gcd(page_tokens, _UNIT_TOKENS)


def unit_hashes(ids: np.ndarray, ids_per_page: int, units_per_page: int, namespace: int = 0) -> np.ndarray:
    """[full pages x units_per_page] uint64: a hash of each unit's page and all before it, the same in every process.

    ids: [num_ids] integers, of tokens or of pages. namespace: a number for whose prompt it is. Not for telling content
    apart where somebody may choose it: it decides what is sampled, nothing else.
    """
    # Powers of two, so that few tables of weights are kept.
    weights = _weights(1 << max(len(ids) - 1, 0).bit_length())[: len(ids)]
    sums = np.cumsum((np.asarray(ids).astype(np.uint64) + _STEP) * weights, dtype=np.uint64)
    pages = _mixed(sums[ids_per_page - 1 :: ids_per_page] + np.uint64(namespace & (2**64 - 1)))
    if units_per_page == 1:
        return pages
    return _mixed(pages[:, None] + np.arange(units_per_page, dtype=np.uint64) * _STEP).ravel()


class MissRatioCurve:
    """Owned by whoever counts requests. use: O(units) vectorised, and some microseconds for each sampled one.

    Holds at most `max_samples` units: beyond that the rate is halved. It starts at `early_factor` times what is asked for, since little traffic
    needs more of it, and comes down to that as samples come in. Newer requests count more (`half_life_queries`; None: all alike).
    """

    def __init__(
        self,
        unit_tokens: int,
        rate: float = 0.01,
        max_samples: int = 1 << 16,
        half_life_queries: float | None = None,
        early_factor: int = 16,
    ) -> None:
        """early_factor: a power of two."""
        self.unit_tokens = unit_tokens
        self.rate = min(rate * early_factor, 1.0)
        self._final_rate = rate
        self._max_samples = max_samples
        # Newer requests weigh more, instead of older less: nothing is multiplied but one number.
        self._growth = 1.0 if half_life_queries is None else 2.0 ** (1 / half_life_queries)
        # Which use each sampled unit was last part of, and how many units each use still is the last of; oldest first.
        self._last_use: dict[int, int] = {}
        self._num_units = np.zeros(_FIRST_USES, dtype=np.int64)
        self._num_uses = 0
        self.clear_counts()

    def clear_counts(self) -> None:
        """Count from here on; what the cache would hold stays."""
        self._weight = 1.0
        # Of what was asked for: all, what was in whole units, and what the sampled ones of these stand for.
        self._asked_tokens = self._whole_tokens = 0.0
        self._sampled_tokens = [0.0] * _NUM_PARTS
        self._reused_tokens = [[0.0] * _NUM_BUCKETS for _ in range(_NUM_PARTS)]

    @property
    def num_samples(self) -> int:
        """Sampled units that are remembered."""
        return len(self._last_use)

    def forget(self) -> None:
        """The cache was emptied: nothing in it was used before."""
        self._last_use.clear()
        self._num_units[:] = 0
        self._num_uses = 0

    def use(self, hashes: np.ndarray, num_asked_tokens: int, is_counted: bool = True) -> None:
        """A request uses the units `hashes`, [num_units] uint64 root first, and asked for those of its first tokens.

        is_counted: False for what must not show in the rates (a pre-warm), though the cache holds it from now on.
        """
        places = np.flatnonzero(hashes < np.uint64(min(int(self.rate * 2.0**64), 2**64 - 1)))
        keys = hashes[places].tolist()
        last_uses = [self._last_use.get(key, -1) for key in keys]
        if is_counted:
            self._weight *= self._growth
            self._asked_tokens += self._weight * num_asked_tokens
            self._whole_tokens += self._weight * min(num_asked_tokens, len(hashes) * self.unit_tokens)
            self._count(places.tolist(), keys, last_uses, num_asked_tokens)
            if self._weight > _MAX_WEIGHT:
                self._rescale()
        if keys:
            self._renew(keys, last_uses)

    def _count(self, places: list[int], keys: list[int], last_uses: list[int], num_asked_tokens: int) -> None:
        distances = self._distances(last_uses)
        for place, key, distance in zip(places, keys, distances, strict=True):
            asked_tokens = min(num_asked_tokens - place * self.unit_tokens, self.unit_tokens)
            if asked_tokens <= 0:
                break
            part = key % _NUM_PARTS
            stands_for = self._weight * asked_tokens / self.rate
            self._sampled_tokens[part] += stands_for
            if distance is not None:
                # A bucket includes its upper edge, the smallest cache that hits: one more than was used since.
                bucket = math.ceil(_PER_OCTAVE * math.log2(distance + 1))
                self._reused_tokens[part][min(bucket, _NUM_BUCKETS - 1)] += stands_for

    def _distances(self, last_uses: list[int]) -> list[float | None]:
        """Distinct units used since, for sampled ones in the order of their path, estimated; None at a first use."""
        newer: dict[int, int] = {}
        found: list[float | None] = []
        for last_use in last_uses:
            if last_use < 0:
                found.append(None)
                continue
            # Of one use the units nearer to the root are the newer ones; paths share them from the root on.
            if last_use not in newer:
                newer[last_use] = int(self._num_units[last_use + 1 : self._num_uses].sum())
            found.append(newer[last_use] / self.rate)
            newer[last_use] += 1
        return found

    def _rescale(self) -> None:
        scale = 1 / self._weight
        self._weight = 1.0
        self._asked_tokens *= scale
        self._whole_tokens *= scale
        self._sampled_tokens = [tokens * scale for tokens in self._sampled_tokens]
        self._reused_tokens = [[tokens * scale for tokens in part] for part in self._reused_tokens]

    def _renew(self, keys: list[int], last_uses: list[int]) -> None:
        for key, last_use in zip(keys, last_uses, strict=True):
            if last_use >= 0:
                self._num_units[last_use] -= 1
            self._last_use[key] = self._num_uses
        self._num_units[self._num_uses] = len(keys)
        self._num_uses += 1
        is_early = self.rate > self._final_rate
        if len(self._last_use) > (min(_EARLY_SAMPLES, self._max_samples) if is_early else self._max_samples):
            self._halve_rate()
        if self._num_uses == len(self._num_units):
            self._close_gaps()

    def _halve_rate(self) -> None:
        self.rate = max(self.rate / 2, self._final_rate) if self.rate > self._final_rate else self.rate / 2
        limit = int(self.rate * 2.0**64)
        for key in [key for key in self._last_use if key >= limit]:
            self._num_units[self._last_use.pop(key)] -= 1

    def _close_gaps(self) -> None:
        """Number the uses anew that some unit remembers, with room for as many again."""
        live = np.flatnonzero(self._num_units)
        new_number = {int(old): new for new, old in enumerate(live)}
        counts = np.zeros(max(_FIRST_USES, 2 * len(live)), dtype=np.int64)
        counts[: len(live)] = self._num_units[live]
        self._num_units = counts
        self._num_uses = len(live)
        self._last_use = {key: new_number[old] for key, old in self._last_use.items()}

    def hit_rate(self, capacity_tokens: float) -> float | None:
        """Share of the tokens asked for that lru would hit with that much memory; None if none were asked for."""
        if not self._asked_tokens:
            return None
        # What all requests share is small and weighs much. Whether it is in the sample shows in how many tokens the
        # sample stands for; the tokens that are missing are taken as such, which any cache hits (SHARDS-adj).
        missed_out = self._whole_tokens - sum(self._sampled_tokens)
        hit_tokens = self._hit_tokens(capacity_tokens).sum() + missed_out
        return float(np.clip(hit_tokens / self._asked_tokens, 0.0, 1.0))

    def standard_error(self, capacity_tokens: float) -> float | None:
        """How far `hit_rate` may be off by sampling, as a share of the tokens: what parts of the sample say alone differs,
        and a distance is known as well as the samples within it are many, which matters where the curve is steep.
        """
        if not self._asked_tokens:
            return None
        sampled_tokens = np.array(self._sampled_tokens)
        alone = _NUM_PARTS * (self._hit_tokens(capacity_tokens) - sampled_tokens) / self._asked_tokens
        by_parts = float(alone.std(ddof=1)) / _NUM_PARTS**0.5
        off = 1 / max(self.rate * capacity_tokens / self.unit_tokens, 1.0) ** 0.5
        nearer, farther = (self._hit_tokens(capacity_tokens * scale).sum() for scale in (1 - off, 1 + off))
        return math.hypot(by_parts, (farther - nearer) / 2 / self._asked_tokens)

    def _hit_tokens(self, capacity_tokens: float) -> np.ndarray:
        """[num_parts] reused tokens at a distance below the capacity."""
        num_held = capacity_tokens / self.unit_tokens
        if num_held < 1:
            return np.zeros(_NUM_PARTS)
        edge = min(_PER_OCTAVE * math.log2(num_held), _NUM_BUCKETS - 2)
        whole = int(edge)
        reused_tokens = np.array(self._reused_tokens)
        partly = (edge - whole) * reused_tokens[:, whole + 1]
        return reused_tokens[:, : whole + 1].sum(axis=1) + partly
