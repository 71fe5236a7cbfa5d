"""ARC: what was used once against what was used again, and ghosts of either say which needs more room.

Megiddo and Modha, ARC: A Self-Tuning, Low Overhead Replacement Cache (2003), with sizes in tokens.
"""

from __future__ import annotations

from radiximp.policy.baselines.two_lists import (
    FIRST,
    FIRST_GHOST,
    SECOND,
    SECOND_GHOST,
    UNSEEN,
    TwoListPolicy,
)
from radiximp.policy.history import NodeHistory


class ARC(TwoListPolicy):
    """FIRST: used once (T1), SECOND: used again (T2); both least recent first. O(path) per request."""

    name = "arc"

    def __init__(self) -> None:
        super().__init__()
        # How many tokens FIRST may hold.
        self._target_tokens = 0.0

    def _use(self, history: NodeHistory, num_tokens: int) -> None:
        state, tokens = self._state(history), self._tokens
        if state == FIRST_GHOST:
            self._target_tokens += num_tokens * max(1.0, tokens[SECOND_GHOST] / max(tokens[FIRST_GHOST], 1))
        elif state == SECOND_GHOST:
            self._target_tokens -= num_tokens * max(1.0, tokens[FIRST_GHOST] / max(tokens[SECOND_GHOST], 1))
        self._move(history, FIRST if state == UNSEEN else SECOND, num_tokens)
        history.weight = 0.0
        self._target_tokens = min(max(self._target_tokens, 0.0), self._num_resident_tokens)

    def _goes_first(self) -> int:
        return FIRST if self._tokens[FIRST] > self._target_tokens else SECOND
