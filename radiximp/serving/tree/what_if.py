"""What this server would hit with other sizes of its host tier: the curve of the requests that it serves.

The model is lru over pages of all tiers together, for what a request asks; the policy at work is better or worse than that, as the guard says.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from radiximp.policy.miss_ratio import MissRatioCurve, unit_hashes, unit_tokens_of
from radiximp.policy.prefix_digest import namespace_hasher

SCALES = (0.5, 1.0, 2.0, 4.0)
# Requests after which an old one counts half: the curve is about the current traffic.
_HALF_LIFE_QUERIES = 4096


class WhatIf:
    """Owned by a tree core; never asked by the policy. O(prompt tokens) per request, vectorised."""

    def __init__(self, rate: float, page_tokens: int = 1, device_tokens: int = 0) -> None:
        """rate: share of the tokens that is sampled; 0 switches it off."""
        self._page_tokens = page_tokens
        self._unit_tokens = unit_tokens_of(page_tokens)
        self._curve = (
            MissRatioCurve(self._unit_tokens, rate, half_life_queries=_HALF_LIFE_QUERIES) if rate else None
        )
        self._device_tokens = device_tokens
        self._host_tokens = 0
        self._is_write_back = False

    def note_host(self, host_tokens: int, is_write_back: bool) -> None:
        """How large the host tier is, and whether it holds other content than the device."""
        self._host_tokens = host_tokens
        self._is_write_back = is_write_back

    def forget(self) -> None:
        """The cache was emptied."""
        if self._curve is not None:
            self._curve.forget()

    def note_request(
        self, token_ids, num_prompt_tokens: int, extra_key: str | None, cache_salt: str | None, is_user: bool
    ) -> None:
        """A request ended. token_ids: prompt and answer, a buffer of 64-bit integers, as the tree keeps them."""
        if self._curve is None or not len(token_ids):
            return
        namespace = int.from_bytes(namespace_hasher(extra_key, cache_salt).digest()[:8], "little")
        tokens = np.frombuffer(token_ids, dtype=np.int64)
        units_per_page = self._page_tokens // self._unit_tokens
        hashes = unit_hashes(tokens, self._page_tokens, units_per_page, namespace)
        self._curve.use(hashes, num_prompt_tokens, is_counted=is_user)

    def rows(self) -> Iterator[dict]:
        """One per scale of the host tier (of the device, where there is none): what lru would hit, and its standard error."""
        if self._curve is None:
            return
        for scale in SCALES:
            device_tokens, host_tokens = self._device_tokens, int(scale * self._host_tokens)
            if not self._host_tokens:
                device_tokens = int(scale * device_tokens)
            held = max(device_tokens, host_tokens)
            if self._is_write_back:
                held = device_tokens + host_tokens
            yield {
                "scale": scale,
                "device_tokens": device_tokens,
                "host_tokens": host_tokens,
                "hit_rate": self._curve.hit_rate(held),
                "standard_error": self._curve.standard_error(held),
            }

    def describe(self) -> dict:
        """For `/radiximp/stats`."""
        if self._curve is None:
            return {"rate": 0.0, "samples": 0, "sizes": []}
        return {"rate": self._curve.rate, "samples": self._curve.num_samples, "sizes": list(self.rows())}
