"""The batch of a step as tensors, as the ops read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace_engine.models.ops import Batch, Extent

QUERY_TILE = 8
"""Number of positions per query tile; see attention.py."""

TILES_AT_ONCE = 64
"""Number of tiles per group: bounds the memory of their keys and scores."""


@dataclass(frozen=True, slots=True)
class TileGroup:
    """Query tiles computed together.

    Attributes:
        first_tile: number of its first tile in the batch.
        positions: position of each query, [tiles, QUERY_TILE].
        context: number of positions with keys in the tile's sequence, [tiles].
        tables: block tables, [tiles, blocks], padded with block 0.
        lowest: the smallest position of a batch row in the group.
        shortest: the smallest of context.
    """

    first_tile: int
    positions: Tensor
    context: Tensor
    tables: Tensor
    lowest: int
    shortest: int


@dataclass(frozen=True, slots=True)
class TorchBatch:
    """The batch as built by `TorchOps.prepare`.

    Attributes:
        token_ids, positions: per row, [rows].
        blocks, offsets: location of each row's keys and values in the pool, [rows].
        logits_rows: rows whose logits are computed.
        num_tiles: number of query tiles.
        tile_rows: index of each row among the num_tiles · QUERY_TILE queries.
        groups: the tiles.
        adapters: rows of each adapter, by its number.
    """

    token_ids: Tensor
    positions: Tensor
    blocks: Tensor
    offsets: Tensor
    logits_rows: Tensor
    num_tiles: int
    tile_rows: Tensor
    groups: tuple[TileGroup, ...]
    adapters: Mapping[int, Tensor]


@dataclass(frozen=True, slots=True)
class _Tile:
    """QUERY_TILE positions of a sequence, from a multiple of QUERY_TILE on."""

    extent: Extent
    position: int


def prepare(batch: Batch, block_size: int, blocks_per_tile: int, device: torch.device) -> TorchBatch:
    """Build the batch on the device; block tables are padded to multiples of blocks_per_tile."""

    def tensor(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    positions = batch.positions
    blocks = [extent.blocks[p // block_size] for extent in batch.extents for p in range(extent.start, extent.context)]
    tiles = [tile for extent in batch.extents for tile in _tiles(extent)]
    return TorchBatch(
        token_ids=tensor(batch.token_ids),
        positions=tensor(positions),
        blocks=tensor(blocks),
        offsets=tensor(positions) % block_size,
        logits_rows=tensor(batch.logits_rows),
        num_tiles=len(tiles),
        tile_rows=tensor(list(_tile_rows(batch.extents))),
        groups=tuple(
            _group(first, tiles[first : first + TILES_AT_ONCE], block_size, blocks_per_tile, device)
            for first in range(0, len(tiles), TILES_AT_ONCE)
        ),
        adapters=adapter_rows(batch.extents, device),
    )


def adapter_rows(extents: Sequence[Extent], device: torch.device) -> dict[int, Tensor]:
    """Return the indices of the rows of each adapter, by its number."""
    rows: dict[int, list[int]] = {}
    for extent in extents:
        if extent.adapter:
            rows.setdefault(extent.adapter, []).extend(range(extent.row, extent.row + extent.length))
    return {number: torch.tensor(indices, device=device) for number, indices in rows.items()}


def _tiles(extent: Extent) -> Iterator[_Tile]:
    for position in range(_aligned(extent.start), extent.context, QUERY_TILE):
        yield _Tile(extent, position)


def _aligned(position: int) -> int:
    return position // QUERY_TILE * QUERY_TILE


def _tile_rows(extents: Sequence[Extent]) -> Iterator[int]:
    first_tile = 0
    for extent in extents:
        before = first_tile * QUERY_TILE - _aligned(extent.start)
        yield from range(before + extent.start, before + extent.context)
        first_tile += -(-(extent.context - _aligned(extent.start)) // QUERY_TILE)


def _group(
    first: int, tiles: Sequence[_Tile], block_size: int, blocks_per_tile: int, device: torch.device
) -> TileGroup:
    context = [min(tile.extent.context, tile.position + QUERY_TILE) for tile in tiles]
    width = -(-max(context) // (block_size * blocks_per_tile)) * blocks_per_tile
    tables = torch.zeros(len(tiles), width, dtype=torch.int64)
    for row, tile in enumerate(tiles):
        used = -(-context[row] // block_size)
        tables[row, :used] = torch.tensor(tile.extent.blocks[:used])
    starts = torch.tensor([tile.position for tile in tiles])
    return TileGroup(
        first_tile=first,
        positions=(starts.unsqueeze(1) + torch.arange(QUERY_TILE)).to(device),
        context=torch.tensor(context, device=device),
        tables=tables.to(device),
        lowest=min(max(tile.position, tile.extent.start) for tile in tiles),
        shortest=min(context),
    )
