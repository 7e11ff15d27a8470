"""Weights and arrays that ops of a program take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace_engine.native import abi
from headrace_engine.native.abi import Value
from headrace_engine.native.matrix import PackedMatrix


@dataclass(frozen=True, slots=True)
class Product:
    """One of the products of an x: out = x · weightᵀ + bias, where bias is float32 [outputs]."""

    weight: PackedMatrix
    out: Value
    bias: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """One expert of a mixture; biases, if there are some, are float32."""

    gate: PackedMatrix
    up: PackedMatrix
    down: PackedMatrix
    gate_bias: NDArray[np.float32] | None = None
    up_bias: NDArray[np.float32] | None = None
    down_bias: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class Routing:
    """How scores choose the experts of a row, and weigh them.

    Attributes:
        used: number of experts of a row.
        normalised: whether the weights of a row's experts are divided by their sum.
        mixer_threshold: SparseMixer's, which then gives the weights; 0: none.
        sigmoid: whether weights are sigmoids of scores, and not softmax over all.
        scale: factor of weights.
        correction: added to these weights where experts are chosen, float32 [experts]; None: nothing.
        groups: number of groups that experts stand in.
        groups_used: number of groups that a row's experts are of.
    """

    used: int
    normalised: bool
    mixer_threshold: float = 0.0
    sigmoid: bool = False
    scale: float = 1.0
    correction: NDArray[np.float32] | None = None
    groups: int = 1
    groups_used: int = 1


def expert_struct(expert: ExpertWeights) -> abi.Expert:
    """Return the struct of an expert, which points to its weights."""
    products = (expert.gate, expert.up, expert.down)
    biases = [
        None if bias is None else address_of(bias, weight.matrix.outputs)
        for weight, bias in zip(products, (expert.gate_bias, expert.up_bias, expert.down_bias), strict=True)
    ]
    # Addresses keep nothing alive: whoever hands the struct out retains the expert.
    return abi.Expert(*(weight.struct for weight in products), *biases)


def address_of(array: NDArray[np.float32], *shape: int) -> int:
    """Return the address of contiguous float32 numbers of a shape.

    Raises:
        ValueError: the array has another shape or type.
    """
    if array.shape != shape or array.dtype != np.float32 or not array.flags.c_contiguous:
        raise ValueError(f"{array.dtype} {array.shape} where contiguous float32 {shape} is needed")
    return array.ctypes.data
