"""Which queries of a prompt are observed, and which of its keys their attention is counted on.

The last tokens of a prompt look at everything before them. Keys that get mass whatever is asked are left out:
the first tokens (attention sinks) and, from the first block that a watched query lies in, the queries' own surroundings.
"""

from __future__ import annotations

import dataclasses

# The first tokens of a sequence draw attention whatever they say (Xiao et al. 2023, "Efficient streaming
# language models with attention sinks", keeps four).
NUM_SINK_TOKENS = 4


@dataclasses.dataclass(frozen=True)
class ObservationWindow:
    """The watched queries of one prompt, all in token positions.

    num_tokens: the prompt. first_new: the first position that is computed, not cached. num_queries, stride: the last
    `num_queries` positions, every `stride`-th of them back from the end. block_tokens: the unit of the observation.
    """

    num_tokens: int
    first_new: int
    num_queries: int
    stride: int
    block_tokens: int

    @property
    def begin(self) -> int:
        """The earliest position that may be watched: what was cached has no query any more."""
        return max(self.num_tokens - self.num_queries, self.first_new)

    @property
    def end_key(self) -> int:
        """Keys from here on are the queries' own surroundings; a multiple of `block_tokens`."""
        return self.begin // self.block_tokens * self.block_tokens

    @property
    def num_blocks(self) -> int:
        """Blocks that an observation is about; 0 if the prompt is too short for one."""
        return self.end_key // self.block_tokens if self.end_key > NUM_SINK_TOKENS else 0

    def rows(self, first: int, end: int) -> list[int]:
        """Watched positions of a prefill chunk [first, end), ascending: the same ones however it is cut."""
        last = self.num_tokens - 1
        return [
            position
            for position in range(max(first, self.begin), end)
            if (last - position) % self.stride == 0
        ]
