"""What a node remembers of the attention it received, and how that splits with the node.

One `ImportanceAggregate` belongs to one tree node. It knows nothing of trees, tiers or eviction.
"""

from __future__ import annotations

# Densities are stored on this grid, so that ranks whose reduced scores differ in the last
# bits store the same number and keep deciding alike.
DENSITY_STEP = 1 / 64


def quantise(density: float) -> float:
    """`density` rounded to the grid that every rank shares."""
    return round(density / DENSITY_STEP) * DENSITY_STEP


class ImportanceAggregate:
    """Attention density of one node, aggregated over queries.

    density: attention mass share / token share; 1.0 = as attended as the average token (EMA).
    mass: sum over observations of density x tokens, so that fragments share it by tokens.
    top_bits: bit i = the node was in the top share of the i-th last observed query.
    """

    __slots__ = ("density", "mass", "num_observations", "top_bits")

    def __init__(self) -> None:
        self.density = 1.0
        self.mass = 0.0
        self.num_observations = 0
        self.top_bits = 0

    def observe(
        self, density: float, num_tokens: int, is_top: bool, half_life_queries: float, window_queries: int
    ) -> None:
        """Fold one query's density (>= 0) into the aggregate; the first observation is taken whole."""
        density = quantise(density)
        if self.num_observations == 0:
            self.density = density
        else:
            alpha = 1 - 0.5 ** (1 / half_life_queries)
            self.density = quantise(self.density + alpha * (density - self.density))
        self.mass += density * num_tokens
        self.num_observations += 1
        self.top_bits = ((self.top_bits << 1) | is_top) & ((1 << window_queries) - 1)

    def top_share(self, window_queries: int) -> float | None:
        """Share of the last `window_queries` observations with the node in the top; None before any."""
        if self.num_observations == 0:
            return None
        return self.top_bits.bit_count() / min(self.num_observations, window_queries)

    def split(self, head_tokens: int, total_tokens: int) -> ImportanceAggregate:
        """Cut after `head_tokens` of `total_tokens`: returns the head's aggregate, keeps the tail's.

        Densities, counts and membership copy; the mass divides by tokens.
        """
        head = ImportanceAggregate()
        head.density = self.density
        head.num_observations = self.num_observations
        head.top_bits = self.top_bits
        head.mass = self.mass * head_tokens / total_tokens
        self.mass -= head.mass
        return head
