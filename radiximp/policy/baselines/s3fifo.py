"""S3-FIFO: a small queue for what is new, a main queue for what was used again or was evicted too soon.

Yang et al., FIFO Queues are All You Need for Cache Eviction (SOSP 2023), with sizes in tokens. There a
used object is put back when its turn to go has come; here its place is moved on as it is used, so that choosing changes
nothing: by one lap of the main queue a use, by three at most.
"""

from __future__ import annotations

from radiximp.policy.base import Leaf
from radiximp.policy.baselines.two_lists import FIRST, SECOND, UNSEEN, TwoListPolicy
from radiximp.policy.history import NodeHistory

_SMALL_SHARE = 0.1
# Uses in the small queue, beside the one that brought it there, that move a node to the main queue.
_PROMOTING_RETURNS = 2
_MAX_LAPS = 3


class S3FIFO(TwoListPolicy):
    """FIRST: small queue, SECOND: main queue. `num_returns` counts uses in the small queue. O(path) per request."""

    name = "s3fifo"

    def __init__(self) -> None:
        super().__init__()
        self._num_new_tokens = 0.0
        # The place of the main queue's latest victim.
        self._hand = 0.0

    def _use(self, history: NodeHistory, num_tokens: int) -> None:
        state, lap = self._state(history), self._tokens[SECOND]
        if state == UNSEEN:
            history.num_returns = 0
            self._num_new_tokens += num_tokens
            history.weight = self._num_new_tokens
            self._move(history, FIRST, num_tokens)
        elif state == FIRST:
            history.num_returns += 1
            if history.num_returns >= _PROMOTING_RETURNS:
                self._enter_main(history, num_tokens)
        elif state == SECOND:
            history.weight = min(history.weight + lap, self._hand + (1 + _MAX_LAPS) * lap)
        else:
            self._enter_main(history, num_tokens)

    def _enter_main(self, history: NodeHistory, num_tokens: int) -> None:
        self._move(history, SECOND, num_tokens)
        history.weight = self._hand + self._tokens[SECOND]

    def note_evicted(self, leaf: Leaf) -> None:
        """Also move the main queue's hand on."""
        if leaf.history.reuse_class == SECOND:
            self._hand = max(self._hand, leaf.history.weight)
        super().note_evicted(leaf)

    def _ghost_tokens(self) -> float:
        return (1 - _SMALL_SHARE) * self._num_resident_tokens

    def _goes_first(self) -> int:
        return FIRST if self._tokens[FIRST] > _SMALL_SHARE * self._num_resident_tokens else SECOND
