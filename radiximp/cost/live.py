"""Fetch or recompute on a running server: what was measured, and the choice for one request.

All pure: equal samples in an equal order give equal choices, so ranks that are told the same decide the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from radiximp.cost.calibration import PrefillBatch, PrefillCalibration, RobustFit, TransferCalibration
from radiximp.cost.formulas import GB_BYTES
from radiximp.cost.predict import CachedState, Split, Transfer, best_split, split_seconds

HOST, STORAGE = "host", "storage"
# A cut falls on a grid of so many pages, so that requests which wait do not cut a node to crumbs.
_GRID_PAGES = 16
# What was not chosen is tried again when that costs at most this share of the time spent on what was chosen since.
_PROBE_SHARE = 0.02
_REPORTED_TOKENS = 1024


class LiveCosts:
    """Calibrations of one server, and choices by them. A choice changes nothing.

    is_overlapped: layers compute while later layers load; otherwise the load is over before the prefill begins.
    """

    def __init__(self, state: CachedState, page_tokens: int, is_overlapped: bool) -> None:
        self.state = state
        self.page_tokens = page_tokens
        self.is_overlapped = is_overlapped
        self.prefill = PrefillCalibration()
        self.tiers = {HOST: TransferCalibration(), STORAGE: TransferCalibration()}
        # Seconds of computing since a tier's last fetch, and of fetching since a prefix of that size (in bits) was computed.
        self._declined_s = {HOST: 0.0, STORAGE: 0.0}
        self._fetched_s: Counter[int] = Counter()

    def note_transfer(self, tier: str, num_tokens: int, seconds: float, queue_s: float = 0.0) -> None:
        """Learn from one transfer."""
        self.tiers[tier].note(num_tokens, seconds, queue_s)
        self._declined_s[tier] = 0.0

    def note_declined(self, tier: str, depth_tokens: int, num_tokens: int) -> None:
        """A request computed these tokens behind `depth_tokens`, which this tier held or might have held."""
        self._declined_s[tier] += self.recompute_s(depth_tokens, num_tokens) or 0.0
        if tier == HOST:
            del self._fetched_s[num_tokens.bit_length()]

    def note_fetched(self, num_tokens: int, is_all: bool, shares_a_load: bool) -> None:
        """A request fetches these tokens from the host, all that it held or a part; its batch may pay the latency already."""
        self._declined_s[HOST] = 0.0  # spent, whatever comes of it
        if not is_all:
            return
        transfer = self._host_transfer(0.0, shares_a_load)
        self._fetched_s[num_tokens.bit_length()] += float(transfer.seconds(self.state.num_bytes(num_tokens)))

    def _host_transfer(self, queue_s: float, shares_a_load: bool) -> Transfer:
        transfer = self.tiers[HOST].transfer(self.state.bytes_per_token, queue_s)
        return Transfer(transfer.bandwidth_bytes_per_s) if shares_a_load else transfer

    def best(
        self,
        device_tokens: int,
        host_tokens: int,
        suffix_tokens: int,
        others: PrefillBatch | None = None,
        queue_s: float = 0.0,
        shares_a_load: bool = False,
    ) -> Split | None:
        """How much of `host_tokens` (whole pages, behind `device_tokens`) to fetch; None while a cost is unknown.

        others: what is computed in the same batch. queue_s: of transfers before this one. shares_a_load: one for the
        batch is made in any case, and its latency is paid.
        """
        if not (self.prefill.is_known and self.tiers[HOST].is_known):
            return None
        prefill = self.prefill.model(device_tokens, others)
        transfer = self._host_transfer(queue_s, shares_a_load)
        total = host_tokens + suffix_tokens

        def seconds(num_fetched: int) -> float:
            return float(split_seconds(prefill, transfer, self.state, num_fetched, total, self.is_overlapped))

        split = best_split(
            prefill, transfer, self.state, host_tokens, suffix_tokens, self.page_tokens, self.is_overlapped
        )
        fetched = split.num_fetched_tokens
        if 0 < fetched < host_tokens:
            grid = _GRID_PAGES * self.page_tokens
            on_grid = (device_tokens + fetched) // grid * grid - device_tokens
            fetched = min((0, on_grid if on_grid > 0 else fetched, host_tokens), key=seconds)
        if fetched == 0:
            fetched = self._probe_tokens(host_tokens, seconds)
        elif (
            fetched == host_tokens
            and 0 < seconds(0) - seconds(fetched) <= _PROBE_SHARE * self._fetched_s[host_tokens.bit_length()]
        ):
            fetched = 0
        return Split(fetched, host_tokens - fetched, seconds(fetched))

    def _probe_tokens(self, host_tokens: int, seconds: Callable[[int], float]) -> int:
        """A page, doubled as long as it is cheap enough; 0 where even a page is too dear by now."""
        limit_s = seconds(0) + self._probe_s(HOST)
        fetched, probe = 0, min(self.page_tokens, host_tokens)
        while fetched < probe <= host_tokens and seconds(probe) <= limit_s:
            fetched, probe = probe, 2 * probe
        return fetched

    def _probe_s(self, tier: str) -> float:
        """Seconds that a look at this tier may cost."""
        return _PROBE_SHARE * self._declined_s[tier]

    def recompute_s(self, depth_tokens: int, num_tokens: int) -> float | None:
        """Seconds to compute tokens behind `depth_tokens`, beside what any pass costs; None while that is unknown."""
        if not self.prefill.is_known:
            return None
        model = self.prefill.model(depth_tokens)
        return float(model.seconds(num_tokens)) - model.overhead_s

    def note_asked(self) -> None:
        """Storage is asked for a request's tokens."""
        self._declined_s[STORAGE] = 0.0

    def is_storage_worth_it(self, depth_tokens: int, num_tokens: int) -> bool:
        """Whether storage, were it to hold all of these tokens, would give them sooner than a prefill; yes while unknown."""
        tier = self.tiers[STORAGE]
        recompute_s = self.recompute_s(depth_tokens, num_tokens)
        if recompute_s is None or not tier.is_known:
            return True
        num_bytes = self.state.num_bytes(num_tokens)
        fetch_s = float(tier.transfer(self.state.bytes_per_token).seconds(num_bytes))
        if self.tiers[HOST].is_known:
            fetch_s += float(self.tiers[HOST].transfer(self.state.bytes_per_token, 0.0).seconds(num_bytes))
        return fetch_s < recompute_s + self._probe_s(STORAGE)

    def restore_share(self) -> float | None:
        """Seconds to fetch from the host over seconds to compute again, of a usual prefix; at most 1, None while unknown."""
        recompute_s = self.recompute_s(0, _REPORTED_TOKENS)
        if not recompute_s or not self.tiers[HOST].is_known:
            return None
        transfer = self.tiers[HOST].transfer(self.state.bytes_per_token, 0.0)
        return min(1.0, float(transfer.seconds(self.state.num_bytes(_REPORTED_TOKENS))) / recompute_s)

    def describe(self) -> dict[str, Any]:
        """What was learned, plain JSON types; null where nothing was."""
        overhead_s, s_per_token, s_per_pair = self.prefill.fit.coefficients
        seconds = float(self.prefill.model().seconds(_REPORTED_TOKENS)) if self.prefill.is_known else 0.0
        return {
            "prefill": {
                "overhead_s": overhead_s,
                "s_per_token": s_per_token,
                "s_per_pair": s_per_pair,
                "tokens_per_s": _REPORTED_TOKENS / seconds if seconds else None,
                **_fit(self.prefill.fit),
            },
            "tiers": {name: self._tier(tier) for name, tier in self.tiers.items()},
        }

    def _tier(self, tier: TransferCalibration) -> dict[str, Any]:
        rate = self.state.bytes_per_token / tier.s_per_token / GB_BYTES if tier.s_per_token > 0 else None
        return {
            "latency_s": tier.latency_s,
            "s_per_token": tier.s_per_token,
            "gb_per_s": rate,
            "queue_s": tier.queue_s,
            **_fit(tier.fit),
        }


def _fit(fit: RobustFit) -> dict[str, Any]:
    predicted_s, measured_s = fit.recent[-1] if fit.recent else (None, None)
    return {
        "samples": fit.num_samples,
        "median_error": fit.median_error,
        "predicted_s": predicted_s,
        "measured_s": measured_s,
    }
