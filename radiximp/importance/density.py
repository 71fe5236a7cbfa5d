"""From masses on tokens to densities of blocks: what one query's attention says of each block of its prompt.

density = mass share / token share within a layer, 1.0 = as attended as the average token; layers are averaged after
that, so that one with little mass outside its sinks counts as much as any other.
"""

from __future__ import annotations

import torch

from radiximp.importance.window import NUM_SINK_TOKENS, ObservationWindow

# A secondary sink draws this many times the mass of the average token ...
_HEAVY = 8.0
# ... from all watched queries alike: the deviation over queries is below this share of the mean.
_INDIFFERENT = 0.5
# Fewer queries do not tell who is indifferent to them.
_MIN_QUERIES = 4

# Where all mass lies outside of what is counted, rounding is all that is left of it.
_LEAST_MASS = 1e-30


class TokenMass:
    """Sums over the watched queries of one prompt, per layer and token; on the device of the keys.

    total, squares: [num_layers, num_keys] float32; num_queries: [num_layers] queries counted so far.
    first_key: [num_layers] from where on all of a layer's watched queries see every key.
    """

    def __init__(
        self, window: ObservationWindow, num_layers: int, device: torch.device | str = "cpu"
    ) -> None:
        self.window = window
        self.total = torch.zeros(num_layers, window.end_key, device=device)
        self.squares = torch.zeros(num_layers, window.end_key, device=device)
        self.num_queries = [0] * num_layers
        self.first_key = [NUM_SINK_TOKENS] * num_layers

    def add(self, layer: int, mass: torch.Tensor, reduction: str = "mean") -> None:
        """Count watched queries: mass [num_queries, num_heads, >= end_key], heads by "mean" or "max"."""
        self.add_sums(layer, *reduced_sums(mass[:, :, : self.window.end_key], reduction), len(mass))

    def add_sums(self, layer: int, total: torch.Tensor, squares: torch.Tensor, num_queries: int) -> None:
        """As `add`, from [end_key] sums over queries that a kernel made."""
        self.total[layer] += total
        self.squares[layer] += squares
        self.num_queries[layer] += num_queries

    def limit(self, layer: int, attention_window: int | None) -> None:
        """Leave out keys that the last query of a sliding-window layer does not see."""
        if attention_window is not None:
            first = max(0, self.window.num_tokens - 1 - attention_window)
            self.first_key[layer] = max(NUM_SINK_TOKENS, first)

    def block_densities(self, exclude_sinks: bool = True, normalise_layers: bool = True) -> torch.Tensor:
        """[num_blocks] float32, layers averaged; NaN for a block that no layer tells anything of.

        exclude_sinks: leave secondary sinks out, too. normalise_layers=False sums masses over layers first.
        """
        counted = self._counted(exclude_sinks)
        mass = self.total * counted
        if not normalise_layers:
            mass, counted = mass.sum(0, keepdim=True), counted.any(0, keepdim=True)
        return _density_of_blocks(mass, counted, self.window.block_tokens).nanmean(0)

    def secondary_sinks(self) -> torch.Tensor:
        """[num_layers, num_keys] bool: heavy tokens that all watched queries attend to alike."""
        num_queries = self._column(self.num_queries).clamp(min=1)
        mean = self.total / num_queries
        deviation = (self.squares / num_queries - mean**2).clamp(min=0).sqrt()
        ordinary = self._reachable()
        average = (mean * ordinary).sum(1, keepdim=True) / ordinary.sum(1, keepdim=True).clamp(min=1)
        heavy = (mean > _HEAVY * average) & (deviation < _INDIFFERENT * mean)
        return heavy & ordinary & (num_queries >= _MIN_QUERIES)

    def _reachable(self) -> torch.Tensor:
        keys = torch.arange(self.total.shape[1], device=self.total.device)
        return keys >= self._column(self.first_key)

    def _column(self, values: list[int]) -> torch.Tensor:
        # Not `torch.tensor(values, device=...)`: it would wait for an accelerator to take them.
        column = torch.empty(len(values), 1, device=self.total.device)
        for row, value in zip(column, values, strict=True):
            row.fill_(value)
        return column

    def _counted(self, exclude_sinks: bool) -> torch.Tensor:
        counted = self._reachable()
        return counted & ~self.secondary_sinks() if exclude_sinks else counted


def reduced_sums(mass: torch.Tensor, reduction: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Heads reduced, then sums over queries of what is left and of its square: two [num_keys] of [num_queries, num_heads, num_keys]."""
    reduced = mass.mean(1) if reduction == "mean" else mass.amax(1)
    return reduced.sum(0), (reduced**2).sum(0)


def _density_of_blocks(mass: torch.Tensor, counted: torch.Tensor, block_tokens: int) -> torch.Tensor:
    """[num_layers, num_blocks]; num_keys is a multiple of `block_tokens`."""
    block_mass = mass.unflatten(1, (-1, block_tokens)).sum(-1)
    block_tokens_counted = counted.float().unflatten(1, (-1, block_tokens)).sum(-1)
    average = mass.sum(1, keepdim=True) / counted.sum(1, keepdim=True)
    densities = block_mass / (block_tokens_counted * average)
    return densities.where((average > _LEAST_MASS) & densities.isfinite(), torch.nan)
