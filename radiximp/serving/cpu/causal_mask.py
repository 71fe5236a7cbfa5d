"""Additive causal masks for query tiles, cut as views from one buffer."""

from __future__ import annotations

import torch


class CausalMask:
    """Masks of 0 and -inf. Row r of a buffer belongs to the r-th query of a tile and column `origin + c` to
    the key c places after the tile's first query, so that the mask of a tile further right is a view that
    begins further left. Buffers double as sequences grow: `group * tile_size` rows of 2 bytes per token.
    """

    def __init__(self, tile_size: int) -> None:
        self.tile_size = tile_size
        self._buffers: dict[tuple[int, int | None, torch.dtype], torch.Tensor] = {}

    def tile(self, num_keys_before: int, group: int, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        """[group * tile_size, num_keys_before + tile_size]: a tile, once per query head of a KV head."""
        buffer, origin = self._buffer(num_keys_before, group, window, dtype)
        return buffer[:, origin - num_keys_before : origin + self.tile_size]

    def _buffer(
        self, num_keys_before: int, group: int, window: int | None, dtype: torch.dtype
    ) -> tuple[torch.Tensor, int]:
        buffer = self._buffers.get((group, window, dtype))
        origin = 0 if buffer is None else buffer.shape[1] - self.tile_size
        if buffer is None or origin < num_keys_before:
            origin = max(2 * origin, num_keys_before, 1024)
            query = torch.arange(self.tile_size)[:, None]
            key = torch.arange(-origin, self.tile_size)[None]
            hidden = key > query
            if window is not None:
                hidden |= key < query - window
            buffer = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
            buffer = buffer.repeat(group, 1)
            self._buffers[group, window, dtype] = buffer
        return buffer, origin
