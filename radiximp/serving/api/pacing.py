"""When warm traffic may run, and how much of it at once, so that users' requests hardly notice.

A piece starts when no user's request is in flight. A server that is never idle still gets its prompts warm: there a
piece may start while all of them decode, but pieces take only a small share of the time.
"""

from __future__ import annotations

import asyncio
import time

from radiximp.serving.requests import WARM_RID

# How long a piece may take: the most that a request which arrives meanwhile waits for it.
PIECE_S = 0.25
MIN_PIECE_TOKENS = 32
MAX_PIECE_TOKENS = 8192
_FIRST_PIECE_TOKENS = 64
# Shares of time: of pieces beside running requests.
BUSY_SHARE = 0.05
# How often a quiet moment is looked for.
_LOOK_EVERY_S = 0.01


class Pacing:
    """Owned by the HTTP process's event loop. until_quiet: O(requests in flight) a look."""

    def __init__(self, tokenizer_manager) -> None:
        self._manager = tokenizer_manager
        self.page_tokens = tokenizer_manager.server_args.page_size or 1
        self._piece_tokens = float(_FIRST_PIECE_TOKENS)
        self._busy_from_s = time.monotonic() + PIECE_S / BUSY_SHARE

    @property
    def piece_tokens(self) -> int:
        """Tokens of the next piece, whole pages: what is left of a page would be computed again."""
        return max(1, round(self._piece_tokens / self.page_tokens)) * self.page_tokens

    def note_piece(self, num_computed_tokens: int, seconds: float) -> None:
        """A piece took that long: the next is as long as fits the time, at most twice as long as the last."""
        now_s = time.monotonic()
        self._busy_from_s = now_s + seconds / BUSY_SHARE
        if num_computed_tokens < MIN_PIECE_TOKENS:
            return  # mostly found in the cache: it says nothing of the speed
        fitting = num_computed_tokens * PIECE_S / max(seconds, 1e-6)
        fitting = min(fitting, 2 * self._piece_tokens)
        self._piece_tokens = min(max(fitting, MIN_PIECE_TOKENS), MAX_PIECE_TOKENS)

    async def until_quiet(self) -> None:
        """Return when a piece may start."""
        while not self._is_quiet():
            await asyncio.sleep(_LOOK_EVERY_S)

    def _is_quiet(self) -> bool:
        users = [
            state for rid, state in self._manager.rid_to_state.items() if not str(rid).startswith(WARM_RID)
        ]
        if not users:
            return True
        awaits_first_token = any(state.time_stats.first_token_time <= 0.0 for state in users)
        return not awaits_first_token and time.monotonic() >= self._busy_from_s
