"""An adapter on disk: the low-rank factors of the matrices that it changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace_engine.models.files import TensorInfo
from headrace_engine.models.mapped import map_tensor
from headrace_engine.models.spec import DecoderSpec

_ADAPTED = ("q", "k", "v", "o", "gate", "up", "down")
"""Matrices of a layer that an adapter may change, by the last part of their canonical name."""
_ATTENTION = ("q", "k", "v", "o")
"""Those whose heads lie in other places than in the files that adapters were made for, with latent attention."""

_AT_ONCE = 2**22
"""Bytes that are hashed or checked at a time."""

_NUMBERS: Mapping[str, Any] = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


def may_change(name: str, spec: DecoderSpec) -> bool:
    """True if adapters may change the matrix of a canonical name: one of a layer, and of none of its experts."""
    part = name.rpartition(".")[2]
    return part in _ADAPTED and name.count(".") == 2 and (spec.latent is None or part not in _ATTENTION)


@dataclass(frozen=True, slots=True)
class Factors:
    """The factors of an adapter for one matrix, to whose product it adds scale · x · aᵀ · bᵀ.

    Attributes:
        a: [rank, inputs].
        b: [outputs, rank]; its rows may be in another order, as those of the matrix itself.
    """

    a: TensorInfo
    b: TensorInfo
    scale: float

    @property
    def rank(self) -> int:
        """Number of rows of a."""
        return self.a.shape[0]


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """An adapter whose files were found and checked against a model.

    Attributes:
        path: the directory or file.
        factors: by the canonical name of the matrix, such as "layers.0.q".
    """

    path: Path
    factors: Mapping[str, Factors]

    @property
    def rank(self) -> int:
        """The largest rank of any matrix."""
        return max(each.rank for each in self.factors.values())

    @property
    def num_parameters(self) -> int:
        """Number of values of all factors."""
        return sum(each.a.stored.elements + each.b.stored.elements for each in self.factors.values())


def content_digest(files: AdapterFiles) -> str:
    """Return a digest of what the adapter computes: it is the same for copies of it, wherever they are.

    Raises:
        BadModel: a file has changed since it was opened, or holds a value that is not finite.
    """
    digest = sha256()
    for name, factors in sorted(files.factors.items()):
        for info in (factors.a, factors.b):
            order = (info.interleaved_heads, info.rotary_dim)
            described = (name, factors.scale, info.stored.storage, info.shape, order)
            digest.update(repr(described).encode())
            _read(info, digest)
    return digest.hexdigest()


def _read(info: TensorInfo, digest: Any) -> None:
    """Feed the values of a tensor to the digest."""
    data = map_tensor(info.stored)
    for begin in range(0, len(data), _AT_ONCE):
        part = bytes(data[begin : begin + _AT_ONCE])
        if not is_finite(part, info.stored.storage):
            raise info.stored.error("holds values that are not finite")
        digest.update(part)


def is_finite(data: bytes, storage: str) -> bool:
    """True if all numbers of a plain storage type are finite."""
    if storage == "BF16":
        bits: NDArray[np.uint16] = np.frombuffer(data, "<u2")
        return bool(((bits & 0x7F80) != 0x7F80).all())
    return bool(np.isfinite(np.frombuffer(data, _NUMBERS[storage])).all())
