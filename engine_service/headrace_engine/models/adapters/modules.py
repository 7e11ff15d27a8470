"""The matrices of a model that adapters change, by the names that files give them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace_engine.models.adapters.adapter import may_change
from headrace_engine.models.files import FLOATS, StoredTensor, TensorInfo
from headrace_engine.models.layout import FileLayout, by_file_name, info_of, name_some
from headrace_engine.models.spec import DecoderSpec
from headrace_engine.models.tensor_shapes import expected_shapes

_WEIGHT = ".weight"


@dataclass(frozen=True, slots=True)
class Module:
    """A matrix of files of one format.

    Attributes:
        layer: index of its layer.
        parts: shapes of the matrices that its rows hold, in order, by canonical name.
    """

    layer: int
    parts: Mapping[str, tuple[int, ...]]

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs of the matrix."""
        shapes = list(self.parts.values())
        return sum(shape[0] for shape in shapes), shapes[0][1]


def modules_of(spec: DecoderSpec, layout: FileLayout) -> dict[str, Module]:
    """Return the modules that adapters can change, by the names of files without ".weight"."""
    shapes = {name: shape for name, shape in expected_shapes(spec).items() if may_change(name, spec)}
    found = by_file_name(shapes, layout.names)
    return {name.removesuffix(_WEIGHT): Module(_layer(parts), parts) for name, parts in found.items()}


def listed(modules: Mapping[str, Module], spec: DecoderSpec) -> str:
    """Return what adapters can change in a model, and what not, for messages."""
    layers: dict[str, list[int]] = {}
    for name, module in modules.items():
        layers.setdefault(name.rpartition(".")[2], []).append(module.layer)
    kinds: dict[tuple[int, ...], list[str]] = {}
    for kind, indices in layers.items():
        kinds.setdefault(tuple(indices), []).append(kind)
    parts: list[str] = []
    for found, names in kinds.items():
        where = (
            "" if len(found) == spec.num_layers else f" of layer{'s'[: len(found) - 1]} {name_some(map(str, found))}"
        )
        parts.append(", ".join(names) + where)
    if spec.experts is not None:
        parts.append("none of experts, shared ones included")
    if spec.latent is not None:
        parts.append("none of latent attention, whose heads lie otherwise here than in the files adapters are made for")
    return "; ".join(parts) or "none"


def factors_of(
    module: Module, a: StoredTensor, b: StoredTensor, spec: DecoderSpec, layout: FileLayout
) -> dict[str, tuple[TensorInfo, TensorInfo]]:
    """Return the factors of each matrix of a module: all share the first, and have rows of the second.

    Raises:
        BadModel: a tensor has another type, or a shape that does not fit.
    """
    for tensor in (a, b):
        if tensor.storage not in FLOATS:
            raise tensor.error(f"is {tensor.storage}; supported are {', '.join(FLOATS)}")
    outputs, inputs = module.shape
    rank = a.shape[0] if len(a.shape) == 2 else 0
    if rank < 1 or a.shape != (rank, inputs):
        raise a.error(f"is {list(a.shape)}, but the model's matrix has {inputs} inputs: expected [rank, {inputs}]")
    if b.shape != (outputs, rank):
        text = f"is {list(b.shape)}, but the model's matrix has {outputs} outputs and {a.name} rank {rank}"
        raise b.error(f"{text}: expected [{outputs}, {rank}]")
    found, first = {}, 0
    for name, (rows, _) in module.parts.items():
        found[name] = (TensorInfo(name, a), info_of(name, b.rows(first, rows), spec, layout))
        first += rows
    return found


def _layer(parts: Mapping[str, tuple[int, ...]]) -> int:
    return int(next(iter(parts)).split(".")[1])
