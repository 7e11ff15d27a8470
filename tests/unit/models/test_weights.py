"""Weights come out of every kind of file as the reference reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from headrace_engine.errors import BadModel
from headrace_engine.model_types import ModelPhase
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.files import StoredTensor, TensorInfo
from headrace_engine.models.layout import HF_NAMES, file_name
from headrace_engine.models.loaders.gguf_types import READABLE_TYPES
from headrace_engine.models.weights import PLAIN, load_weights, read_tensor
from support.models.damage import cut_end, edit_json
from support.models.tiny_models import make_tiny_gguf, make_tiny_llama
from unit.models.conftest import Copy

CPU = torch.device("cpu")


def reference(directory: Path) -> dict[str, torch.Tensor]:
    """The state of the model as transformers loads it in float32."""
    from transformers import AutoModelForCausalLM

    state: dict[str, torch.Tensor] = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).state_dict()
    return state


def load(path: Path, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return load_weights(open_model(str(path)), dtype, CPU, lambda *_: None)


def largest_difference(weights: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> float:
    """Over all tensors, which must agree in name and shape."""
    differences = [0.0]
    for name, weight in weights.items():
        other = expected[file_name(name, HF_NAMES)]
        assert weight.shape == other.shape
        differences.append(float((weight - other).abs().max()))
    return max(differences)


@pytest.mark.parametrize("name", ["llama", "sharded", "tied", "qwen2", "mistral"])
def test_directories_equal_transformers(name: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(name)
    weights, expected = load(path), reference(path)
    assert largest_difference(weights, expected) == 0
    assert expected.keys() - {file_name(part, HF_NAMES) for part in weights} <= {"lm_head.weight"}


def test_a_tied_head_is_not_there_twice(tied: Path) -> None:
    assert "head" not in load(tied)


@pytest.mark.parametrize("name", ["llama", "tied", "qwen2", "mistral"])
def test_gguf_in_f32_equals_its_source(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    source = request.getfixturevalue(name)
    path = make_tiny_gguf(tmp_path / "model.gguf", source)
    assert largest_difference(load(path), reference(source)) == 0


def test_biases_of_llama_files_are_put_in_order_too(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "source", attention_bias=True, mlp_bias=True)
    path = make_tiny_gguf(tmp_path / "model.gguf", source)
    weights = load(path)
    assert "layers.0.q_bias" in weights
    assert largest_difference(weights, reference(source)) == 0


@pytest.mark.parametrize(("quant", "tolerance"), [("F16", 0.004), ("BF16", 0.03), ("Q8_0", 0.03), ("Q4_1", 0.2)])
def test_quantised_gguf_is_close_to_its_source(tmp_path: Path, llama: Path, quant: str, tolerance: float) -> None:
    path = make_tiny_gguf(tmp_path / "model.gguf", llama, quant)
    assert 0 < largest_difference(load(path), reference(llama)) < tolerance


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_come_in_the_dtype_asked_for(llama: Path, llama_gguf: Path, dtype: torch.dtype) -> None:
    expected = {name: weight.to(dtype) for name, weight in load(llama).items()}
    for path in (llama, llama_gguf):
        weights = load(path, dtype)
        assert all(torch.equal(weights[name], expected[name]) for name in expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_stored_float_type_is_read(copy: Copy, llama: Path, dtype: torch.dtype) -> None:
    from safetensors.torch import load_file, save_file

    path = copy(llama)
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(path / "model.safetensors").items()}
    save_file(tensors, path / "model.safetensors")
    expected = {name: tensor.float() for name, tensor in tensors.items()}
    assert largest_difference(load(path), expected) == 0


def test_progress_counts_the_bytes_of_the_source(llama: Path) -> None:
    files = open_model(str(llama))
    seen: list[tuple[ModelPhase, int, int | None]] = []
    load_weights(files, torch.float32, CPU, lambda *step: seen.append(step))
    done = [count for _, count, _ in seen]
    assert {phase for phase, _, _ in seen} == {ModelPhase.LOADING}
    assert {total for _, _, total in seen} == {files.weight_bytes}
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, files.weight_bytes)


def test_loaded_weights_do_not_hang_on_the_file(copy: Copy, llama: Path) -> None:
    path = copy(llama)
    weights = load(path)
    kept = weights["embed"].clone()
    (path / "model.safetensors").write_bytes(b"\0" * (path / "model.safetensors").stat().st_size)
    assert torch.equal(weights["embed"], kept)


def test_bc124_a_file_that_shrank_after_it_was_opened_is_refused(copy: Copy, llama: Path) -> None:
    path = copy(llama)
    files = open_model(str(path))
    cut_end(path / "model.safetensors", 4096)
    with pytest.raises(BadModel, match=r"model\.safetensors: truncated"):
        load_weights(files, torch.float32, CPU, lambda *_: None)


def test_values_that_float16_does_not_hold_are_refused_by_tensor(copy: Copy, llama: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = copy(llama)
    tensors = load_file(path / "model.safetensors")
    tensors["model.norm.weight"][3] = 1e6
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(BadModel, match=r"model\.norm\.weight.*BFLOAT16"):
        load(path, torch.float16)
    assert load(path, torch.bfloat16)["final_norm"][3] > 9e5


def test_bc113_a_stored_different_head_is_loaded(copy: Copy, llama: Path) -> None:
    path = copy(llama)
    edit_json(path / "config.json", tie_word_embeddings=True)
    weights = load(path)
    assert torch.equal(weights["head"], reference(llama)["lm_head.weight"])


def block_size(name: str) -> int:
    """Values of one block of a type."""
    return gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][0]


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    ("name", "columns"),
    [
        (name, columns)
        for name in sorted(READABLE_TYPES - PLAIN.keys())
        for columns in (32, 256, 512)
        if columns % block_size(name) == 0
    ],
)
def test_bc133_every_type_equals_the_reference(tmp_path: Path, name: str, rows: int, columns: int) -> None:
    kind = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    packed = blocks(name, rows * columns // block, size).reshape(rows, -1)
    file = tmp_path / "tensor.bin"
    file.write_bytes(b"\0" * 32 + packed.tobytes())
    info = TensorInfo("embed", StoredTensor("token_embd.weight", name, (rows, columns), file, 32, packed.nbytes))
    expected = gguf.quants.dequantize(packed, kind)
    values = read_tensor(info, torch.float32, CPU)
    assert values.shape == (rows, columns)
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(values.numpy(), expected)


def test_bc133_large_tables_are_unpacked_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import headrace_engine.models.weights as module

    monkeypatch.setattr(module, "_CHUNK_VALUES", 100)
    packed = blocks("Q8_0", 40, 34).reshape(20, -1)
    (tmp_path / "tensor.bin").write_bytes(packed.tobytes())
    stored = StoredTensor("token_embd.weight", "Q8_0", (20, 64), tmp_path / "tensor.bin", 0, packed.nbytes)
    values = read_tensor(TensorInfo("embed", stored), torch.float32, CPU)
    np.testing.assert_array_equal(values.numpy(), gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q8_0))


def blocks(name: str, count: int, size: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """Random blocks. Bytes stay below 0x78, so that no scale in half precision is infinite or not a number."""
    generator = np.random.default_rng(sum(name.encode()))
    return generator.integers(0, 0x78, (count, size), dtype=np.uint8)
