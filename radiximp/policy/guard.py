"""A shadow of lru beside the learned policy: where that loses by more than noise, lru takes over for a while.

The shadow holds no content. Under lru a cache holds what was used last, up to its size; so it is enough to count
the tokens whose last use was each request, newest first, and the hit of a node follows from when it was used last.
Exact at token granularity, memory one number a request in the shadow.
"""

from __future__ import annotations

from collections import OrderedDict

# Requests over which wins and losses are averaged, half-life.
_HALF_LIFE_QUERIES = 512
_DECAY = 0.5 ** (1 / _HALF_LIFE_QUERIES)
_MIN_QUERIES = 512
# What counts as a loss: at least this share of the prompt tokens, and this many standard errors.
_MIN_LOSS = 0.003
_NUM_ERRORS = 3.0
_FIRST_PAUSE_QUERIES = 2048
_MAX_PAUSE_QUERIES = 1 << 16


class LruShadow:
    """What lru would hit in a cache of `capacity_tokens`; use: O(1) amortised."""

    def __init__(self) -> None:
        self.capacity_tokens = 0
        self._tokens: OrderedDict[int, float] = OrderedDict()
        self._held_tokens = 0.0

    def use(self, number: int, last_numbers: dict[int, int], new_tokens: int) -> float:
        """Request `number` uses tokens, by the request that used them last, and new ones; returns the tokens hit."""
        hit_tokens = 0.0
        for last_number, num_tokens in last_numbers.items():
            held = min(self._tokens.get(last_number, 0.0), num_tokens)
            if held:
                hit_tokens += held
                self._tokens[last_number] -= held
                if self._tokens[last_number] <= 0:
                    del self._tokens[last_number]
            new_tokens += num_tokens
        self._held_tokens += new_tokens - hit_tokens
        if new_tokens:
            self._tokens[number] = new_tokens
        while self._held_tokens > self.capacity_tokens and self._tokens:
            oldest = next(iter(self._tokens))
            dropped = min(self._tokens[oldest], self._held_tokens - self.capacity_tokens)
            self._held_tokens -= dropped
            self._tokens[oldest] -= dropped
            if self._tokens[oldest] <= 0:
                del self._tokens[oldest]
        return hit_tokens

    def clear(self) -> None:
        """The cache was emptied."""
        self._tokens.clear()
        self._held_tokens = 0.0


class Guard:
    """Compares hits request by request; `is_tripped` says that lru is to rank."""

    def __init__(self) -> None:
        self.shadow = LruShadow()
        self.num_trips = 0
        self.shadow_hit_tokens = 0.0
        self.hit_tokens = 0.0
        self.prompt_tokens = 0.0
        self._number = 0
        self._pause_queries = _FIRST_PAUSE_QUERIES
        self._resume_at = 0
        self._restart()

    def _restart(self) -> None:
        self._started_at = self._number
        self._weight = self._loss = self._loss_squared = self._tokens = 0.0

    @property
    def is_tripped(self) -> bool:
        """Whether lru ranks now."""
        return self._number < self._resume_at

    @property
    def loss(self) -> float | None:
        """Recent share of prompt tokens that lru would have hit beyond ours; negative is a gain, None before any."""
        return self._loss / self._tokens if self._tokens else None

    def describe(self) -> str:
        """One line on who ranks and why."""
        if not self.is_tripped:
            return "the learned policy ranks again"
        pause = self._resume_at - self._number
        return f"lru ranks for the next {pause} requests: the learned policy lost {self.loss:.1%} of prompt tokens to it"

    def observe(self, last_numbers: dict[int, int], new_tokens: int, hit_tokens: int) -> int:
        """One request: its tokens by the request that used them last, those never seen, those found in the cache.

        Returns the request's number, by which its tokens are named from now on.
        """
        self._number = number = self._number + 1
        prompt_tokens = sum(last_numbers.values()) + new_tokens
        shadow_hit_tokens = self.shadow.use(number, last_numbers, new_tokens)
        self.shadow_hit_tokens += shadow_hit_tokens
        self.hit_tokens += hit_tokens
        self.prompt_tokens += prompt_tokens
        if number == self._resume_at:
            self._restart()
        if not self.is_tripped:
            self._compare(shadow_hit_tokens - hit_tokens, prompt_tokens)
        return number

    def _compare(self, loss_tokens: float, prompt_tokens: int) -> None:
        self._weight = self._weight * _DECAY + 1
        self._loss = self._loss * _DECAY + loss_tokens
        self._loss_squared = self._loss_squared * _DECAY + loss_tokens * loss_tokens
        self._tokens = self._tokens * _DECAY + prompt_tokens
        num_queries = self._number - self._started_at
        if num_queries < _MIN_QUERIES or self._loss <= _MIN_LOSS * self._tokens:
            if num_queries > 4 * self._pause_queries:
                self._pause_queries = max(self._pause_queries // 2, _FIRST_PAUSE_QUERIES)
                self._started_at = self._number - _MIN_QUERIES
            return
        mean = self._loss / self._weight
        variance = max(self._loss_squared / self._weight - mean * mean, 0.0)
        # Weights that halve every so often amount to about 2.9 half-lives of independent requests.
        error = (variance / min(self._weight, 2.9 * _HALF_LIFE_QUERIES)) ** 0.5
        if mean > _NUM_ERRORS * error:
            self.num_trips += 1
            self._resume_at = self._number + self._pause_queries
            self._pause_queries = min(2 * self._pause_queries, _MAX_PAUSE_QUERIES)
