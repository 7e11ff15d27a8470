"""Weights in codes on the simulated device: the values of the cpu backend, and products of few rows and of many."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from headrace_engine.backends import cpu
from headrace_engine.backends.cuda.loading import CudaModel
from headrace_engine.backends.cuda.weights import quantized
from headrace_engine.backends.cuda.weights.packing import Packer
from headrace_engine.backends.cuda.weights.quantized import QuantizedProducts, QuantizedWeight
from headrace_engine.backends.cuda.weights.row_products import RowQuantizedWeight
from headrace_engine.config import ActivationQuant, WeightQuant
from headrace_engine.environment import CACHE_VARIABLE
from headrace_engine.native import Dtype, Format, Matrix, MatrixRows, PackedMatrix
from headrace_engine.native.quantized import LAYOUT, QuantizedMatrix
from native.sim_runs import SHAPE, compare_with_cpu, on_cpu, plan_for
from support.backends.runners import silent
from support.models.quantized_checkpoints import SCHEMES, write_quantized
from support.models.tiny_models import make_tiny_gguf, make_tiny_llama, make_tiny_qwen2
from support.sim import device as sim
from support.sim.device import SimDevice

WIDE = {**SHAPE, "intermediate_size": 256}
QUANTS: list[dict[str, Any]] = [
    {"weight_quant": WeightQuant.INT8},
    {"weight_quant": WeightQuant.INT4, "weight_quant_group_size": 32},
]


pytestmark = pytest.mark.usefixtures("simulator")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))


def loaded(path: Path, **changes: object) -> tuple[CudaModel, dict[str, Any]]:
    """A model on the simulated device, and the matrices of the cpu backend by name."""
    plan = plan_for(path, **changes)
    device, reference = sim.make_runner(plan), cpu.make_runner(on_cpu(plan))
    for runner in (device, reference):
        runner.load(silent)
    assert device._model is not None
    assert reference._model is not None
    return device._model, dict(reference._model.weights.tensors)


def same_rows(model: CudaModel, reference: dict[str, Any]) -> set[str]:
    """Compare all quantized weights with the cpu backend's, to the last bit, and return their names."""
    quantized_names = {name for name, weight in model.weights.items() if isinstance(weight, QuantizedWeight)}
    first: dict[int, int] = {}
    for name, weight in model.weights.items():  # Of those that lie side by side, in order.
        if not isinstance(weight, QuantizedWeight):
            continue
        packed: PackedMatrix = reference[name]
        begin = first.get(id(weight), 0)
        first[id(weight)] = begin + packed.matrix.outputs
        for row in range(0, packed.matrix.outputs, 7):
            here = weight.packed.row(weight.data.data_ptr(), begin + row)
            assert np.array_equal(here, packed.row(row)), (name, row)
    return quantized_names


@pytest.mark.parametrize("scheme", ["gptq", "gptq 8 bits", "gptq 8 bits asymmetric", "awq"])
def test_codes_of_others_are_those_of_the_cpu_backend(tmp_path: Path, scheme: str) -> None:
    source = make_tiny_llama(tmp_path / "source", **WIDE)
    path, _ = write_quantized(tmp_path / "made", source, *SCHEMES[scheme])
    model, reference = loaded(path)
    assert same_rows(model, reference) == {name for name, weight in reference.items() if is_in_codes(weight)}
    compare_with_cpu(plan_for(path), seeds=1, tokens=4)


def is_in_codes(weight: object) -> bool:
    return isinstance(weight, PackedMatrix) and weight.matrix.is_integer


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


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("changes", QUANTS, ids=["int8", "int4"])
def test_t1_quantised_models_give_the_scores_of_the_cpu_backend(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Steps of one token, captured; chunks of prompts of few rows and of more than 64."""
    path = make_tiny_qwen2(tmp_path / "model", vocab_size=256, **SHAPE)
    compare_with_cpu(plan_for(path, **changes), seeds=2, tokens=5, chunk=40)


@pytest.mark.parametrize(("rows", "scratch"), [(3, None), (64, None), (65, None), (70, 64 * 640), (70, 1)])
def test_products_of_few_rows_and_of_many(rows: int, scratch: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs shared among several blocks, and weights written out at once or some outputs at a time."""
    if scratch is not None:
        monkeypatch.setattr(quantized, "_SCRATCH_VALUES", scratch)
    rng = np.random.default_rng(rows)
    device = SimDevice()
    weight, numbers = random_weight(device, rng, outputs=150, inputs=4096)
    assert weight.packed.splits(3, device.multiprocessors) > 1
    products = QuantizedProducts(device, [weight, torch.zeros(1)])
    x = torch.from_numpy(rng.standard_normal((rows, 4096))).bfloat16()
    bias = torch.from_numpy(rng.standard_normal(150)).bfloat16()
    for given in (None, bias):
        got = products.linear(x, weight, given).double()
        expected = x.double() @ numbers.T + (0 if given is None else given.double())
        assert torch.linalg.norm(got - expected) < 6e-3 * torch.linalg.norm(expected)
    ids = torch.tensor([149, 0, 7], dtype=torch.int32)
    assert torch.equal(products.rows(weight, ids), numbers[ids].bfloat16())


def random_weight(
    device: SimDevice, rng: np.random.Generator, outputs: int, inputs: int
) -> tuple[QuantizedWeight, Any]:
    """A matrix of 4 bits, and its weights in float64."""
    matrix = Matrix(outputs, inputs, Format.INT4, 128, Dtype.FLOAT32, offsets=True)
    codes = rng.integers(0, 16, (outputs, inputs), dtype=np.uint8)
    scales = rng.uniform(0.5, 1.5, (outputs, inputs // 128)).astype(np.float32)
    packed = QuantizedMatrix(device.native, matrix, Dtype.BFLOAT16)
    data = torch.zeros(packed.nbytes, dtype=torch.uint8)
    packed.pack(data.data_ptr(), MatrixRows(codes, scales, -8 * scales))
    numbers = (codes.astype(float) - 8) * np.repeat(scales, 128, axis=1)
    return QuantizedWeight(packed, data, [outputs]), torch.from_numpy(numbers)


def test_codes_are_counted_where_they_lie(tmp_path: Path) -> None:
    path = make_tiny_llama(tmp_path / "model", **WIDE)
    plain, int4 = (loaded(path, **changes)[0] for changes in ({}, QUANTS[1]))
    assert int4.weight_bytes < 0.55 * plain.weight_bytes
    assert plain.products.nbytes == 0
    assert int4.products.nbytes == 2 * 2 * 256 * 128, "gate and up, the largest matrix, in bfloat16"
    runner = sim.make_runner(plan_for(path, **QUANTS[1]))
    runner.load(silent)
    sizes = runner.size()
    assert sizes.weight_bytes == int4.weight_bytes
    assert sizes.workspace_bytes >= int4.products.nbytes


KEPT: dict[str, tuple[dict[str, Any], str]] = {
    "int4": (QUANTS[1], ""),
    "int8 rows": ({"weight_quant": WeightQuant.INT8, "activation_quant": ActivationQuant.INT8}, ""),
    "blocks": ({}, "Q4_1"),
}
"""How a model is stored, and as which blocks its file has it."""


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all matrices that were packed from files."""
    names: list[str] = []
    pack = Packer._pack_together

    def noted(self: Packer, together: Any, threads: Any, progress: Any) -> Any:
        names.extend(together)
        return pack(self, together, threads, progress)

    monkeypatch.setattr(Packer, "_pack_together", noted)
    return names


def device_model(path: Path, **changes: object) -> CudaModel:
    runner = sim.make_runner(plan_for(path, **changes))
    runner.load(silent)
    assert runner._model is not None
    return runner._model


def bytes_of(model: CudaModel) -> dict[str, list[torch.Tensor]]:
    """What lies on the device, of each weight in codes."""
    found = {}
    for name, weight in model.weights.items():
        if isinstance(weight, QuantizedWeight):
            found[name] = [weight.data]
        elif isinstance(weight, RowQuantizedWeight):
            found[name] = [weight.codes, weight.scales]
    return found


def assert_same(one: CudaModel, other: CudaModel) -> None:
    first, second = bytes_of(one), bytes_of(other)
    assert first.keys() == second.keys()
    for name, tensors in first.items():
        assert all(torch.equal(a, b) for a, b in zip(tensors, second[name], strict=True)), name


def flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("stored", KEPT)
def test_codes_are_packed_once_and_then_taken_from_the_disk(tmp_path: Path, stored: str, packed: list[str]) -> None:
    changes, quant = KEPT[stored]
    path = make_tiny_llama(tmp_path / "model", **WIDE)
    if quant:
        path = make_tiny_gguf(tmp_path / "model.gguf", path, quant)
    first = device_model(path, **changes)
    assert {"layers.0.q", "layers.1.v", "layers.1.down"} <= set(packed)
    packed.clear()
    second = device_model(path, **changes)
    assert not packed
    assert_same(first, second)
    parts = [second.weights[f"layers.1.{name}"] for name in ("q", "k", "v")]
    assert parts[0] is parts[1] is parts[2]
    assert first.weight_bytes == second.weight_bytes
    assert second.products.nbytes == first.products.nbytes


@pytest.mark.parametrize("damage", [flip, lambda data: data[:-70], lambda data: data.replace(b"sizes", b"sizez", 1)])
def test_kept_codes_that_are_damaged_are_packed_anew(
    tmp_path: Path, damage: Callable[[bytes], bytes], packed: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    changes, path = KEPT["int8 rows"][0], make_tiny_llama(tmp_path / "model", **WIDE)
    first = device_model(path, **changes)
    (kept,) = (tmp_path / "cache" / "weights").iterdir()
    kept.write_bytes(damage(kept.read_bytes()))
    packed.clear()
    with caplog.at_level(logging.INFO):
        assert_same(device_model(path, **changes), first)
    assert "layers.0.q" in packed
    assert "weight_cache_not_used" in caplog.text


def test_each_way_to_store_has_a_file_of_its_own(tmp_path: Path) -> None:
    """Also beside the cpu backend's, whose layout is another."""
    path, int8 = make_tiny_llama(tmp_path / "model", **WIDE), {"weight_quant": WeightQuant.INT8}
    for changes in ({}, {"activation_quant": ActivationQuant.FP8}, int8, KEPT["int8 rows"][0]):
        device_model(path, **changes)
    cpu.make_runner(on_cpu(plan_for(path, **int8))).load(silent)
    assert len(list((tmp_path / "cache" / "weights").iterdir())) == 3, "numbers and FP8 are not kept"


def test_a_layout_with_other_bytes_has_another_number() -> None:
    """Kept files are told apart by it: where this fails, count LAYOUT up and write down the new digests."""
    rng = np.random.default_rng(1)
    device, digests = SimDevice(), []
    for kind, group in ((Format.INT8, 0), (Format.INT8, 32), (Format.INT4, 64)):
        matrix = Matrix(70, 200, kind, group, Dtype.FLOAT16, offsets=kind is Format.INT4)
        scales = rng.uniform(0.5, 1.5, (70, matrix.groups)).astype(np.float32)
        codes = rng.integers(0, 256 if kind is Format.INT8 else 16, (70, 200), dtype=np.uint8)
        packed = QuantizedMatrix(device.native, matrix, Dtype.BFLOAT16)
        data = np.zeros(packed.nbytes + 16, dtype=np.uint8)
        start = -data.ctypes.data % 16
        rows = MatrixRows(codes, scales, scales if matrix.offsets else None)
        packed.pack(data.ctypes.data + start, rows)
        digests.append(hashlib.sha256(data[start : start + packed.nbytes]).hexdigest()[:12])
    assert (LAYOUT, digests) == (1, ["8999a95c4bcc", "db27c7db097b", "6a2bb704b0d2"])
