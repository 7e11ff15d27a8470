"""From files to packed weights: storage by file type and plan, rows in place, padding, and what is refused."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from headrace_engine.backends.cpu.weights import rows
from headrace_engine.backends.cpu.weights.numbers import to_bfloat16, to_float32
from headrace_engine.backends.cpu.weights.rows import Orders, TensorRows
from headrace_engine.config import ComputeDtype, WeightQuant
from headrace_engine.environment import CACHE_VARIABLE
from headrace_engine.errors import BadModel, OutOfMemory
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.mapped import map_tensor
from headrace_engine.models.weights import load_weights
from headrace_engine.native import Dtype, Format, Kv, PackedMatrix
from safetensors.torch import load_file, save_file
from support.backends.cpu_sequences import cpu_model
from support.models.assemblies import count_assemblies, make_wide_latents
from support.models.tiny_models import make_tiny_family, make_tiny_gguf, make_tiny_llama

INT4_BLOCKS = {"Q4_0", "Q4_1", "Q4_K", "IQ4_NL"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Rows of 256 values, so that every block type divides them."""
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1}
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny", attention_bias=True, **sizes)


def matrices(model):
    return {name: weight for name, weight in model.weights.tensors.items() if isinstance(weight, PackedMatrix)}


def dense(weight):
    return np.stack([weight.row(row) for row in range(weight.matrix.outputs)])


def values(path, dtype=torch.float32):
    """What the torch backend reads from the same files."""
    return load_weights(open_model(str(path)), dtype, torch.device("cpu"), lambda *_: None)


def converted(path, target, dtype):
    """The same model with its weights in another number format."""
    shutil.copytree(path, target)
    weights = {name: tensor.to(dtype) for name, tensor in load_file(path / "model.safetensors").items()}
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


@pytest.mark.parametrize(
    ("stored", "chosen", "kv"),
    [
        (torch.float32, ComputeDtype.FLOAT32, Kv.FLOAT32),
        (torch.bfloat16, ComputeDtype.BFLOAT16, Kv.BFLOAT16),
        (torch.float16, ComputeDtype.FLOAT16, Kv.FLOAT32),
    ],
    ids=str,
)
def test_auto_keeps_the_files_own_numbers(stored, chosen, kv, tiny, tmp_path):
    path = converted(tiny, tmp_path / "model", stored)
    with cpu_model(path) as model:
        assert (model.dtype, model.program.shape.kv) == (chosen, kv)
        assert {weight.matrix.format for weight in matrices(model).values()} == {Format[chosen]}
        for name, expected in values(path).items():
            weight = model.weights.tensors[name]
            got = dense(weight) if isinstance(weight, PackedMatrix) else weight
            np.testing.assert_array_equal(got, expected.numpy())


@pytest.mark.parametrize("dtype", ["FLOAT32", "BFLOAT16", "FLOAT16"])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_numbers_are_rounded_as_torch_rounds_them(stored, dtype, tiny, tmp_path):
    path = converted(tiny, tmp_path / "model", stored)
    rounded = values(path, getattr(torch, dtype.lower()))
    with cpu_model(path, dtype=ComputeDtype(dtype)) as model:
        for name, weight in matrices(model).items():
            np.testing.assert_array_equal(dense(weight), rounded[name].float().numpy())


def test_bfloat16_keeps_infinities_and_not_a_number():
    given = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1 + 2**-8, 1 + 3 * 2**-8, 3.4e38], dtype=np.float32)
    given = np.append(given, np.array([0x7FFFFFFF, 0xFFFFFFFF], dtype=np.uint32).view(np.float32))
    got = to_float32(to_bfloat16(given), "BF16")
    np.testing.assert_array_equal(got, torch.from_numpy(given).bfloat16().float().numpy())


@pytest.mark.parametrize("quant", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_blocks_are_kept_as_codes_with_rows_in_place(quant, tiny, tmp_path):
    """Queries and keys of the file have the two halves of a rotary pair side by side."""
    path = make_tiny_gguf(tmp_path / "tiny.gguf", tiny, quant)
    expected = values(path)
    with cpu_model(path) as model:
        assert model.dtype is ComputeDtype.BFLOAT16
        for name, weight in matrices(model).items():
            assert weight.matrix.format is (Format.INT4 if quant in INT4_BLOCKS else Format.INT8)
            assert (weight.matrix.group, weight.matrix.scales) == (32, Dtype.FLOAT16)
            np.testing.assert_array_equal(dense(weight), expected[name].numpy())
        for name in ("layers.0.q_bias", "layers.0.input_norm", "final_norm"):
            np.testing.assert_array_equal(model.weights.tensors[name], expected[name].numpy())


def test_blocks_that_have_no_codes_are_read_as_numbers(tiny, tmp_path):
    path = make_tiny_gguf(tmp_path / "tiny.gguf", tiny, "TQ2_0")
    expected = values(path, torch.bfloat16)
    with cpu_model(path) as model:
        for name, weight in matrices(model).items():
            assert weight.matrix.format is Format.BFLOAT16
            np.testing.assert_array_equal(dense(weight), expected[name].float().numpy())


def test_float32_is_exact_also_for_blocks(tiny, tmp_path):
    path = make_tiny_gguf(tmp_path / "tiny.gguf", tiny, "Q4_1")
    with cpu_model(path, dtype=ComputeDtype.FLOAT32) as model:
        assert {weight.matrix.format for weight in matrices(model).values()} == {Format.FLOAT32}
        assert model.program.shape.kv == Kv.FLOAT32


def test_heads_are_filled_up_with_zeros(tmp_path):
    """Rows of queries, keys and values and their biases, and columns of the output."""
    path = make_tiny_llama(tmp_path, head_dim=24, attention_bias=True)
    expected = values(path)
    with cpu_model(path) as model:
        tensors = model.weights.tensors
        for name, heads in (("q", 4), ("k", 2), ("v", 2)):
            rows = dense(tensors[f"layers.0.{name}"]).reshape(heads, 32, 64)
            np.testing.assert_array_equal(rows[:, :24].reshape(-1, 64), expected[f"layers.0.{name}"].numpy())
            assert not rows[:, 24:].any()
            bias = tensors[f"layers.0.{name}_bias"].reshape(heads, 32)
            np.testing.assert_array_equal(bias[:, :24].reshape(-1), expected[f"layers.0.{name}_bias"].numpy())
            assert not bias[:, 24:].any()
        columns = dense(tensors["layers.0.o"]).reshape(64, 4, 32)
        np.testing.assert_array_equal(columns[..., :24].reshape(64, -1), expected["layers.0.o"].numpy())
        assert not columns[..., 24:].any()


def test_heads_of_blocks_are_filled_up_too(tmp_path):
    source = make_tiny_llama(tmp_path / "source", head_dim=24)
    path = make_tiny_gguf(tmp_path / "tiny.gguf", source, "Q8_0")
    expected = values(path)
    with cpu_model(path) as model:
        query, out = (model.weights.tensors[f"layers.0.{name}"] for name in "qo")
        assert (query.matrix.format, out.matrix.format) == (Format.INT8, Format.BFLOAT16)
        rows = dense(query).reshape(4, 32, 64)
        np.testing.assert_array_equal(rows[:, :24].reshape(-1, 64), expected["layers.0.q"].numpy())
        assert not rows[:, 24:].any()


@pytest.mark.parametrize(
    ("changes", "layers", "tables", "group"),
    [
        ({"weight_quant": WeightQuant.INT8}, Format.INT8, Format.INT8, 0),
        ({"weight_quant": WeightQuant.INT4}, Format.INT4, Format.INT8, 128),
        ({"weight_quant": WeightQuant.INT4, "weight_quant_group_size": 32}, Format.INT4, Format.INT8, 32),
    ],
    ids=str,
)
def test_any_model_is_quantised_where_that_is_asked_for(changes, layers, tables, group, tiny, tmp_path):
    """Also one whose file has blocks of its own."""
    for path in (tiny, make_tiny_gguf(tmp_path / "tiny.gguf", tiny, "Q8_0")):
        with cpu_model(path, **changes) as model:
            found = matrices(model)
            assert {found[name].matrix.format for name in ("embed", "head")} == {tables}
            assert {weight.matrix.format for name, weight in found.items() if "layers" in name} == {layers}
            assert {weight.matrix.group for weight in found.values()} == {group}


def test_a_tied_head_is_packed_once(tmp_path):
    path = make_tiny_llama(tmp_path, tie_word_embeddings=True)
    with cpu_model(path) as model:
        assert "head" not in model.weights.tensors


def test_weights_that_float16_does_not_hold_are_refused(tiny, tmp_path):
    path = converted(tiny, tmp_path / "model", torch.float32)
    weights = load_file(path / "model.safetensors")
    weights["model.layers.0.mlp.up_proj.weight"][100, 3] = 1e6
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadModel, match=r"up_proj.* holds values that FLOAT16 does not; use dtype"):
        cpu_model(path, dtype=ComputeDtype.FLOAT16).__enter__()


def test_weights_that_are_not_finite_cannot_be_quantised(tiny, tmp_path):
    path = converted(tiny, tmp_path / "model", torch.float32)
    weights = load_file(path / "model.safetensors")
    weights["model.layers.0.mlp.up_proj.weight"][100, 3] = torch.nan
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadModel, match=r"up_proj.* holds values that are not finite, and cannot be quantised"):
        cpu_model(path, weight_quant=WeightQuant.INT4).__enter__()


def test_weights_above_the_limit_are_refused_before_reading(tiny, monkeypatch):
    monkeypatch.setattr("headrace_engine.backends.cpu.loading.memory_limit", lambda: 2**20)
    with pytest.raises(OutOfMemory, match=r"MiB of weights do not fit, 1\.0 MiB are free: set weight_quant"):
        cpu_model(tiny).__enter__()


@pytest.mark.parametrize("quant", [WeightQuant.NONE, WeightQuant.INT8])
def test_nothing_is_assembled_before_the_memory_check(quant, memory, monkeypatch, tmp_path):
    path, assembled = make_wide_latents(tmp_path / "model"), count_assemblies(monkeypatch)
    memory(2**26)
    with pytest.raises(OutOfMemory, match=r"MiB of weights do not fit, 64\.0 MiB are free"):
        cpu_model(path, weight_quant=quant).__enter__()
    assert not assembled


@pytest.mark.parametrize("quant", [WeightQuant.NONE, WeightQuant.INT4])
def test_each_matrix_is_assembled_once(quant, monkeypatch, tmp_path):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    path, assembled = make_tiny_family(tmp_path / "model", "minicpm3"), count_assemblies(monkeypatch)
    with cpu_model(path, weight_quant=quant) as model:
        assert len(matrices(model)) > 10
    assert set(assembled.values()) == {1}
    assert len(assembled) == 2 * len(("q", "k", "v", "o", "k_spread"))


def test_small_parts_and_many_threads_pack_the_same(tiny, monkeypatch):
    """Matrices are read some rows at a time."""
    with cpu_model(tiny, weight_quant=WeightQuant.INT4) as model:
        expected = {name: dense(weight) for name, weight in matrices(model).items()}
    monkeypatch.setattr("headrace_engine.backends.cpu.weights.packing._VALUES_AT_ONCE", 64 * 256)
    with cpu_model(tiny, weight_quant=WeightQuant.INT4, num_threads=4) as model:
        for name, weight in matrices(model).items():
            np.testing.assert_array_equal(dense(weight), expected[name])


def test_a_matrix_that_cannot_be_read_is_read_once(monkeypatch, tmp_path, tiny):
    """Each of the threads that pack its rows would read the whole of it again."""
    copy = shutil.copytree(tiny, tmp_path / "copy")
    tensor = TensorRows(open_model(str(copy)).tensors["layers.0.q"], Orders())
    (copy / "model.safetensors").write_bytes(b"short")
    tried = []
    monkeypatch.setattr(rows, "map_tensor", lambda stored: tried.append(stored) or map_tensor(stored))
    for _ in range(3):
        with pytest.raises(BadModel, match="truncated"):
            tensor.packed(0, 1)
    assert len(tried) == 1
