"""Weights in codes on the simulated device: the values of the cpu backend, and products of few rows and of many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from headrace_engine.backends import cpu, sim
from headrace_engine.backends.cuda import coded
from headrace_engine.backends.cuda.coded import CodedProducts, CodedWeight
from headrace_engine.backends.cuda.device import SimDevice
from headrace_engine.backends.cuda.loading import CudaModel
from headrace_engine.config import WeightQuant
from headrace_engine.native import FOLDER_VARIABLE, Dtype, Format, Matrix, MatrixRows, PackedMatrix
from headrace_engine.native.coded import CodedMatrix
from native.conftest import need_sim
from native.sim_runs import SHAPE, compare_with_cpu, on_cpu, plan_for
from tiny_models import make_tiny_gguf, make_tiny_llama, make_tiny_qwen2

WIDE = {**SHAPE, "intermediate_size": 256}
QUANTS: list[dict[str, Any]] = [
    {"weight_quant": WeightQuant.INT8},
    {"weight_quant": WeightQuant.INT4, "weight_quant_group_size": 32},
]


@pytest.fixture(autouse=True)
def simulator(libraries: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    need_sim()
    monkeypatch.setenv(FOLDER_VARIABLE, str(libraries))
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def loaded(path: Path, **changes: object) -> tuple[CudaModel, dict[str, Any]]:
    """A model on the simulated device, and the matrices of the cpu backend by name."""
    plan = plan_for(path, **changes)
    device, reference = sim.make_runner(plan), cpu.make_runner(on_cpu(plan))
    for runner in (device, reference):
        runner.load(lambda phase, done, total: None)
    assert device._model is not None
    assert reference._model is not None
    return device._model, dict(reference._model.weights.tensors)


def same_rows(model: CudaModel, reference: dict[str, Any]) -> set[str]:
    """Compare all coded weights with the cpu backend's, to the last bit; gives the names of those that are coded."""
    coded_names = {name for name, weight in model.weights.items() if isinstance(weight, CodedWeight)}
    first: dict[int, int] = {}
    for name, weight in model.weights.items():  # Of those that lie side by side, in order.
        if not isinstance(weight, CodedWeight):
            continue
        packed: PackedMatrix = reference[name]
        begin = first.get(id(weight), 0)
        first[id(weight)] = begin + packed.matrix.outputs
        for row in range(0, packed.matrix.outputs, 7):
            here = weight.packed.row(weight.data.data_ptr(), begin + row)
            assert np.array_equal(here, packed.row(row)), (name, row)
    return coded_names


@pytest.mark.parametrize("changes", QUANTS, ids=["int8", "int4"])
def test_quantised_weights_are_those_of_the_cpu_backend(tmp_path: Path, changes: dict[str, Any]) -> None:
    model, reference = loaded(make_tiny_llama(tmp_path / "model", **WIDE), **changes)
    matrices = {name for name, weight in reference.items() if isinstance(weight, PackedMatrix)}
    assert same_rows(model, reference) == matrices
    parts = [model.weights[f"layers.1.{name}"] for name in ("q", "k", "v")]
    assert parts[0] is parts[1] is parts[2], "projections of one input are multiplied as one"


@pytest.mark.parametrize("quant", ["Q4_0", "Q5_1", "Q8_0", "MXFP4"])
def test_blocks_of_gguf_files_keep_their_codes(tmp_path: Path, quant: str) -> None:
    """A codebook's values become codes of eight bits, with which they are the same."""
    source = make_tiny_llama(tmp_path / "model", **WIDE)
    model, reference = loaded(make_tiny_gguf(tmp_path / "model.gguf", source, quant))
    names = same_rows(model, reference)
    assert {"layers.0.q", "layers.1.v", "layers.1.down"} <= names


def test_blocks_whose_groups_no_kernel_has_are_read_as_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Q6_K has a scale for 16 weights."""
    quantize, rng = gguf.quants.quantize, np.random.default_rng(3)

    def random_blocks(data: Any, kind: gguf.GGMLQuantizationType) -> Any:
        if kind is not gguf.GGMLQuantizationType.Q6_K:
            return quantize(data, kind)
        blocks = rng.integers(0, 256, (data.size // 256, 210), dtype=np.uint8)
        blocks[:, 208:] = np.array([0.001], np.float16).view(np.uint8)
        return blocks.reshape(len(data), -1)

    monkeypatch.setattr(gguf.quants, "quantize", random_blocks)
    source = make_tiny_llama(tmp_path / "model", **WIDE)
    model, reference = loaded(make_tiny_gguf(tmp_path / "model.gguf", source, "Q6_K"))
    assert not same_rows(model, reference)
    down = reference["layers.0.down"]
    assert (down.matrix.format, down.matrix.group) == (Format.INT8, 16)
    row = model.weights["layers.0.down"][3].float().numpy()
    assert np.allclose(row, down.row(3), rtol=2**-8, atol=0)


@pytest.mark.parametrize("changes", QUANTS, ids=["int8", "int4"])
def test_quantised_models_give_the_tokens_of_the_cpu_backend(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Steps of one token, captured; chunks of prompts of few rows and of more than 64."""
    path = make_tiny_qwen2(tmp_path / "model", vocab_size=256, **SHAPE)
    compare_with_cpu(plan_for(path, **changes), seeds=2, tokens=5, chunk=40)


@pytest.mark.parametrize(("rows", "room"), [(3, None), (64, None), (65, None), (70, 64 * 640), (70, 1)])
def test_products_of_few_rows_and_of_many(rows: int, room: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs shared among several blocks, and weights written out at once or some outputs at a time."""
    if room is not None:
        monkeypatch.setattr(coded, "_ROOM_VALUES", room)
    rng = np.random.default_rng(rows)
    device = SimDevice()
    weight, numbers = random_weight(device, rng, outputs=150, inputs=4096)
    assert weight.packed.splits(3, device.multiprocessors) > 1
    products = CodedProducts(device, [weight, torch.zeros(1)])
    x = torch.from_numpy(rng.standard_normal((rows, 4096))).bfloat16()
    bias = torch.from_numpy(rng.standard_normal(150)).bfloat16()
    for given in (None, bias):
        got = products.linear(x, weight, given).double()
        expected = x.double() @ numbers.T + (0 if given is None else given.double())
        assert torch.linalg.norm(got - expected) < 6e-3 * torch.linalg.norm(expected)
    ids = torch.tensor([149, 0, 7], dtype=torch.int32)
    assert torch.equal(products.rows(weight, ids), numbers[ids].bfloat16())


def random_weight(device: SimDevice, rng: np.random.Generator, outputs: int, inputs: int) -> tuple[CodedWeight, Any]:
    """A matrix of 4 bits, and its weights in float64."""
    matrix = Matrix(outputs, inputs, Format.INT4, 128, Dtype.FLOAT32, offsets=True)
    codes = rng.integers(0, 16, (outputs, inputs), dtype=np.uint8)
    scales = rng.uniform(0.5, 1.5, (outputs, inputs // 128)).astype(np.float32)
    packed = CodedMatrix(device.native, matrix, Dtype.BFLOAT16)
    data = torch.zeros(packed.nbytes, dtype=torch.uint8)
    packed.pack(data.data_ptr(), MatrixRows(codes, scales, -8 * scales))
    numbers = (codes.astype(float) - 8) * np.repeat(scales, 128, axis=1)
    return CodedWeight(packed, data, [outputs]), torch.from_numpy(numbers)


def test_codes_are_counted_where_they_lie(tmp_path: Path) -> None:
    path = make_tiny_llama(tmp_path / "model", **WIDE)
    plain, int4 = (loaded(path, **changes)[0] for changes in ({}, QUANTS[1]))
    assert int4.weight_bytes < 0.55 * plain.weight_bytes
    assert plain.products.nbytes == 0
    assert int4.products.nbytes == 2 * 2 * 256 * 128, "gate and up, the largest matrix, in bfloat16"
    runner = sim.make_runner(plan_for(path, **QUANTS[1]))
    runner.load(lambda phase, done, total: None)
    sizes = runner.size()
    assert sizes.weight_bytes == int4.weight_bytes
    assert sizes.workspace_bytes >= int4.products.nbytes
