"""Rotary position embedding of queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace_engine.models.rope import tables
from headrace_engine.models.spec import DecoderSpec


class RotaryTable:
    """Cosines and sines of all positions below a length.

    Args:
        made: the tables.
        device: the device that holds them.

    Attributes:
        cos, sin: float32 [length, dim / 2].
    """

    def __init__(self, made: tables.RotaryTables, device: torch.device) -> None:
        self.cos = torch.from_numpy(made.cos).to(device)
        self.sin = torch.from_numpy(made.sin).to(device)

    @property
    def nbytes(self) -> int:
        """Bytes of both tables."""
        return self.cos.nbytes + self.sin.nbytes

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate the leading dim entries of each head of x [rows, heads, head_dim]; entry i pairs with i + dim / 2.

        It is computed in float32, whatever the type of x.
        """
        cos, sin = self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)
        dim = 2 * cos.shape[-1]
        first, second = x[..., :dim].float().chunk(2, dim=-1)
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        return torch.cat((rotated.to(x.dtype), x[..., dim:]), dim=-1)


class Positions:
    """What a decoder computes from positions alone, on a device.

    Args:
        spec: the decoder.
        length: number of positions.
        device: the device that holds the tables.

    Attributes:
        length: number of positions.
        query_scales: factors of queries, float32 [length]; None: there are none.
    """

    def __init__(self, spec: DecoderSpec, length: int, device: torch.device) -> None:
        made = tables.position_tables(spec, length)
        self._tables = [RotaryTable(rotary, device) for rotary in made.rotary]
        self._layers = spec.layers
        self.length = length
        scales = made.query_scales
        self.query_scales = None if scales is None else torch.from_numpy(scales).to(device)

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        scales = 0 if self.query_scales is None else self.query_scales.nbytes
        return scales + sum(table.nbytes for table in self._tables)

    def table(self, layer: int) -> RotaryTable | None:
        """Return the table of a layer; None: it does not rotate."""
        rope = self._layers[layer].rope
        return None if rope is None else self._tables[rope]

    def rotate(self, layer: int, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate heads, [rows, heads, head_dim], as a layer does."""
        table = self.table(layer)
        return x if table is None else table.rotate(x, positions)

    def scale(self, q: Tensor, positions: Tensor) -> Tensor:
        """Multiply queries, [rows, …], by the factors of their positions."""
        if self.query_scales is None:
            return q
        return q * self.query_scales[positions].view(-1, *[1] * (q.dim() - 1)).to(q.dtype)
