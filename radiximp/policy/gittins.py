"""The default policy: evict what promises least reuse for the time it would be held.

    index(node) = max over W of P(reuse within W) / E[time held until reuse or W]

The law of reuse is learned per class while the cache runs (`reuse_law.py`). A class is made of signals that
carry: how the last request ended, how often the node came back (bursts discounted), the usual gap between its uses, the
length of the last answer, and where attention was observed the quantile of the node's density. A signal that does
not separate reuse leaves the estimate unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from radiximp.config import PolicyConfig
from radiximp.policy.base import Key, Leaf, Path, Policy
from radiximp.policy.class_index import ClassIndex, Curve
from radiximp.policy.guard import Guard
from radiximp.policy.history import NodeHistory
from radiximp.policy.information_gain import information_gain_bits
from radiximp.policy.reuse_law import EDGES_S, NUM_BINS, Features, ReuseLaw, bin_of

# Half of the newest gap, half of the average before it.
_GAP_WEIGHT = 0.5
# Requests between two refreshes of the curves; fewer while little is known.
_REFRESH_QUERIES = 64
_GRID = 2.0**20
_MAX_SPANS = 1 << 16
_MAX_CLASSES = 1 << 11
# How much more readily each doubling of returns makes a node come back, up to what age, until evidence says.
_RETURN_FACTOR = 2.0
_PATIENCE_S = 512.0
# Older is lower, whatever the class: with ties by oldest use this is lru.
_LRU = Curve.of([float(-age_bin) for age_bin in range(NUM_BINS)])
# Of a class; the density is the last.
_NUM_FEATURES = 5
_FINISHES = {"": 0, "tool_use": 1, "end_turn": 2, "length": 3}


def _expected(features: Features) -> np.ndarray | float:
    """[num_bins]: the guess that evidence corrects. What came back before comes back more readily, for a while."""
    if len(features) != 2 or features[1] == 0:
        return 1.0
    return np.where(EDGES_S < _PATIENCE_S, _RETURN_FACTOR ** features[1], 1.0)


class GittinsPolicy(Policy):
    """O(path) per request, and a refresh of the curves every 64 requests."""

    name = "importance"

    def __init__(self, config: PolicyConfig) -> None:
        self.config = config
        self.now_s = 0.0
        # Grows with every change of the curves; an index compares it with what it has seen.
        self.curves_version = 0
        self.law = ReuseLaw(config.law_half_life_s, config.prior_spans, _MAX_SPANS, _MAX_CLASSES, _expected)
        self.law.class_id(())
        self._curves: list[Curve] = []
        self._shared_curves: dict[int, Curve] = {}
        self._num_ended = self._num_waiting = 0
        self.refresh(0.0)
        self.guard = Guard()
        self._ranks_as_lru = False
        # Set by a tree that knows what fetching costs: whether a leaf has a copy below the device, and the share of
        # computing it again that fetching it back takes.
        self.is_backed_up: Callable[[Leaf], bool] | None = None
        self._restore_share = 1.0
        self._notices: list[str] = []

    def restart(self, now_s: float) -> None:
        """The tree was emptied: end all spans where they are; what was learned stays."""
        self.law.end_spans(now_s)
        self.guard.shadow.clear()

    def note_capacity(self, num_tokens: int) -> None:
        """How many tokens the cache holds when full, which the guard's lru is given too."""
        self.guard.shadow.capacity_tokens = num_tokens

    def take_notices(self) -> list[str]:
        """A line for each time that lru took over or gave back."""
        notices, self._notices = self._notices, []
        return notices

    def stats(self) -> dict[str, Any]:
        """Classes and evidence of the law; what the guard saw."""
        guard, asked = self.guard, self.guard.prompt_tokens
        return {
            "reuse_classes": self.law.num_classes,
            "guard": {
                "is_tripped": guard.is_tripped,
                "trips": guard.num_trips,
                "recent_loss_to_lru": guard.loss,
                "hit_rate": guard.hit_tokens / asked if asked else None,
                "shadow_lru_hit_rate": guard.shadow_hit_tokens / asked if asked else None,
            },
        }

    def forget(self) -> None:
        """Back to a cold start: nothing learned (the model's weights changed)."""
        self.law.forget()
        self.refresh(self.now_s)

    def record_uses(self, path: Path, now_s: float, tick: int) -> None:
        """Close the idle spans of the nodes, and count a return for each that was idle for longer than a burst."""
        returned: dict[int, int] = {}
        last_numbers: dict[int, int] = {}
        new_tokens = hit_tokens = 0
        for history, num_tokens in path:
            if history.use_number:
                last_numbers[history.use_number] = last_numbers.get(history.use_number, 0) + num_tokens
                hit_tokens += 0 if history.is_ghost else num_tokens
            else:
                new_tokens += num_tokens
            history.is_ghost = False
            if history.span >= 0:
                returned[history.span] = returned.get(history.span, 0) + num_tokens
                history.span = -1
            if history.num_queries:
                used_s = history.last_use_s if history.used_s is None else history.used_s
                self._count_return(history, now_s - used_s)
            history.used_s = None
            history.num_queries += 1
            history.last_use_s = now_s
            history.last_use_tick = tick
            tick += 1
        for span, num_tokens in returned.items():
            self.law.close(span, now_s, num_tokens)
        number = self.guard.observe(last_numbers, new_tokens, hit_tokens)
        for history, _ in path:
            history.use_number = number
        if self.guard.is_tripped is not self._ranks_as_lru:
            self._ranks_as_lru = self.guard.is_tripped
            self._notices.append(self.guard.describe())
            self.curves_version += 1

    def record_warm(self, path: Path, now_s: float, tick: int) -> None:
        """Rank as if just used, and count nothing: gaps, idle spans and the guard's hits go on from the last use."""
        for history, _ in path:
            if history.is_ghost:
                # It came back by neither policy's merit, so the guard compares nothing at its next use.
                history.is_ghost, history.use_number = False, 0
            if history.num_queries and history.used_s is None:
                history.used_s = history.last_use_s
            history.last_use_s = max(history.last_use_s, now_s)
            history.last_use_tick = tick

    def _count_return(self, history: NodeHistory, gap_s: float) -> None:
        if gap_s < self.config.burst_s:
            return
        gap_log2_s = math.log2(max(gap_s, 0.01))
        history.num_returns += 1
        if history.gap_log2_s is None:
            history.gap_log2_s = gap_log2_s
        else:
            history.gap_log2_s += _GAP_WEIGHT * (gap_log2_s - history.gap_log2_s)

    def record_end(self, path: Path, finish: str, output_tokens: int, now_s: float) -> None:
        """File the nodes under the class that they are idle in from now on."""
        idle: dict[int, int] = {}
        for history, num_tokens in path:
            if history.span >= 0:
                self.law.retract(history.span, num_tokens)
            history.reuse_class = self._class_of(history, finish, output_tokens)
            history.last_use_s = max(history.last_use_s, now_s)
            idle[history.reuse_class] = idle.get(history.reuse_class, 0) + num_tokens
        spans = {number: self.law.open(number, now_s, num_tokens) for number, num_tokens in idle.items()}
        for history, _ in path:
            history.span = spans[history.reuse_class]
        self._num_ended += 1
        self._num_waiting += 1
        # By count, not when somebody asks: a question must not change what is known when a victim is chosen.
        if self._num_waiting >= min(_REFRESH_QUERIES, max(1, self._num_ended // 8)):
            self.refresh(now_s)

    def _class_of(self, history: NodeHistory, finish: str, output_tokens: int) -> int:
        returns = min(4, history.num_returns.bit_length())
        gap = -1 if history.gap_log2_s is None else max(0, min(7, int((history.gap_log2_s + 2) / 2)))
        answer = min(3, max(0, (output_tokens + 1).bit_length() - 5) // 2)
        density = -1
        if history.importance is not None and self.config.importance_weight:
            density = max(0, min(3, int(math.log2(max(history.density, 1 / 64))) + 2))
        return self.law.class_id((_FINISHES.get(finish, 0), returns, gap, answer, density))

    def information_gain_bits(self, now_s: float) -> float | None:
        """What the density tells of reuse beyond the features before it, per reuse; changes nothing."""
        classes, reuse, exposure_s = self.law.evidence(now_s)
        observed = [
            n for n, features in enumerate(classes) if len(features) == _NUM_FEATURES and features[-1] >= 0
        ]
        coarser = [classes[n][:-1] for n in observed]
        return information_gain_bits(
            coarser, reuse[observed], exposure_s[observed], self.law.mean_span_tokens
        )

    def refresh(self, now_s: float) -> None:
        """Make the curves of all classes from what is known at `now_s`."""
        mantissa, exponent = np.frexp(self.law.refresh(now_s))
        # Processors may differ in the last bits of an exponential; ranks must not.
        index = np.ldexp(np.round(mantissa * _GRID) / _GRID, exponent)
        self._curves = Curve.all_of(index)
        self._shared_curves.clear()
        self.curves_version += 1
        self._num_waiting = 0

    def advance(self, now_s: float) -> None:
        """Set the time that ages are taken at."""
        self.now_s = now_s

    def chance_within(self, history: NodeHistory, seconds: float) -> float:
        """1 - exp(-sum of the class's hazard over the time), on a grid that ranks share."""
        hazards = self.law.hazards[history.reuse_class if history.reuse_class < len(self.law.hazards) else 0]
        begin_s = max(self.now_s - history.last_use_s, 0.0)
        end_s, expected_uses = begin_s + seconds, 0.0
        for age_bin in range(bin_of(begin_s), NUM_BINS):
            bin_end_s = float(EDGES_S[age_bin + 1]) if age_bin + 1 < NUM_BINS else math.inf
            expected_uses += float(hazards[age_bin]) * (min(end_s, bin_end_s) - begin_s)
            begin_s = bin_end_s
            if begin_s >= end_s:
                break
        return round(-math.expm1(-expected_uses) * 1024) / 1024

    def note_restore_share(self, share: float) -> None:
        """What losing a backed-up leaf costs, of what losing another costs: 0 to 1. Steps of a quarter octave at least,
        so that a small change does not reorder all leaves."""
        mantissa, exponent = math.frexp(min(max(share, 2.0**-20), 1.0))
        share = math.ldexp(round(8 * mantissa) / 8, exponent)
        if share != self._restore_share:
            self._restore_share = share
            self._shared_curves.clear()
            self.curves_version += 1

    def curve_of(self, leaf: Leaf) -> tuple:
        """The class; and, where a copy counts, whether there is one."""
        if self.is_backed_up is None:
            return (leaf.history.reuse_class,)
        return (leaf.history.reuse_class, self.is_backed_up(leaf))

    def curve(self, reuse_class: int, is_backed_up: bool = False) -> Curve:
        """Index per age bin of a class, per second and cost of a restore; of all classes together for one that is newer
        than the curves."""
        if self._ranks_as_lru:
            return _LRU
        number = reuse_class if reuse_class < len(self._curves) else 0
        if not is_backed_up or self._restore_share == 1:
            return self._curves[number]
        if number not in self._shared_curves:
            values = [self._restore_share * value for value in self._curves[number].values]
            self._shared_curves[number] = Curve.of(values)
        return self._shared_curves[number]

    def key(self, leaf: Leaf) -> Key:
        """(index at the node's age, oldest use first)."""
        history = leaf.history
        value = self.curve(*self.curve_of(leaf)).values[bin_of(self.now_s - history.last_use_s)]
        return (value, history.last_use_s, history.last_use_tick)

    def new_index(self, prefix_of: Callable[[Any], tuple]) -> ClassIndex:
        """Leaves by class and age: exact at every instant without rescoring."""
        return ClassIndex(self, prefix_of)
