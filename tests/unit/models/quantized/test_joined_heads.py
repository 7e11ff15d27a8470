"""Quantized matrices in which queries, keys and values stand head by head: parted code by code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from headrace_engine.config import ComputeDtype
from headrace_engine.models import assembled
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.mapped import map_tensor
from headrace_engine.models.weights import load_weights
from headrace_engine.native import PackedMatrix
from safetensors.torch import load_file, save_file
from support.backends.cpu_sequences import cpu_model
from support.models.json_files import write_json
from support.models.quantized_checkpoints import ALL, NUMBERS, WEIGHTS, write_quantized
from support.models.tiny_models import make_tiny_family
from unit.models.families.test_renamed_llamas import internlm2, llama
from unit.models.quantized.test_quantized_checkpoints import check

__all__ = ["internlm2", "llama"]

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "neox": ("neox", {}),
    "neox without biases": ("neox in sequence", {}),
    "falcon": ("falcon", {"hidden_size": 64, "num_attention_heads": 2}),
    "falcon 40b": ("falcon 40b", {"hidden_size": 128, "num_attention_heads": 4}),
}


def loaded(path: Path) -> dict[str, torch.Tensor]:
    return load_weights(open_model(str(path)), torch.float32, torch.device("cpu"), lambda *_: None)


def same_weights(quantized: Path, plain: Path, *, codes: bool) -> None:
    """Weights as numbers, and on cpu as the codes of the file, are those that the codes stand for."""
    found, expected = loaded(quantized), loaded(plain)
    assert found.keys() == expected.keys()
    for name, weight in found.items():
        assert torch.equal(weight, expected[name]), name
    if not codes:
        return
    with cpu_model(quantized, dtype=ComputeDtype.BFLOAT16) as model:
        for name, packed in model.weights.tensors.items():
            if name.startswith("layers.") and isinstance(packed, PackedMatrix):
                assert packed.matrix.is_integer, name
                rows = torch.from_numpy(np.stack([packed.row(row) for row in range(packed.matrix.outputs)]))
                assert torch.equal(rows, expected[name]), name


@pytest.mark.parametrize("scheme", ALL)
def test_weights_are_those_of_the_formula(scheme: str, tmp_path: Path) -> None:
    packing, config = ALL[scheme]
    ignored = {"ignore": ["embed_out"]} if "ignore" in config else {}
    source = make_tiny_family(tmp_path / "source", "neox")
    quantized, plain = write_quantized(tmp_path / "made", source, packing, config | ignored)
    same_weights(quantized, plain, codes=scheme not in NUMBERS)


@pytest.mark.parametrize("scheme", ["gptq asymmetric", "awq", "gptq act-order", "block fp8"])
@pytest.mark.parametrize("family", FAMILIES)
def test_ids_are_those_of_transformers(family: str, scheme: str, tmp_path: Path) -> None:
    name, sizes = FAMILIES[family]
    check(*write_quantized(tmp_path / "made", make_tiny_family(tmp_path / "source", name, **sizes), *ALL[scheme]))


@pytest.mark.parametrize("scheme", ["gptq", "awq", "nf4 with scales in codes"])
def test_internlm2(scheme: str, internlm2: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    quantized, plain = write_quantized(tmp_path_factory.mktemp("made"), internlm2, *ALL[scheme])
    assert any(".wqkv." in name for name in load_file(quantized / WEIGHTS))
    same_weights(quantized, plain, codes=scheme not in NUMBERS)


def test_zero_biases_that_programs_write_are_left_out(
    internlm2: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    quantized, _ = write_quantized(tmp_path_factory.mktemp("made"), internlm2, *ALL["gptq"])
    tensors = load_file(quantized / WEIGHTS)
    width = tensors["model.layers.0.attention.wqkv.scales"].shape[1]
    biases = {f"model.layers.{layer}.attention.wqkv.bias": torch.zeros(width) for layer in range(2)}
    save_file(tensors | biases, quantized / WEIGHTS, metadata={"format": "pt"})
    (warning,) = open_model(str(quantized)).warnings
    assert warning.startswith("not used, since they are zero: model.layers.0.attention.q.bias")


@pytest.mark.parametrize("scheme", ["gptq asymmetric", "awq", "packed 4 bits asymmetric", "nf4 with scales in codes"])
def test_each_row_is_assembled_once(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where queries, keys and values are read apart, and each rank reads a part of them."""
    packing, config = ALL[scheme]
    ignored = {"ignore": ["embed_out"]} if "ignore" in config else {}
    source = make_tiny_family(tmp_path / "source", "neox", num_hidden_layers=1)
    path, _ = write_quantized(tmp_path / "made", source, packing, config | ignored)
    rows: list[int] = []
    made = assembled._rows

    def counted(assembly: Any, storage: str, inputs: int, parts: Any, numbers: range) -> Any:
        rows.extend(numbers)
        return made(assembly, storage, inputs, parts, numbers)

    monkeypatch.setattr(assembled, "_rows", counted)
    tensors = open_model(str(path)).tensors
    whole = {part: bytes(map_tensor(tensors[f"layers.0.{part}"].stored)) for part in "qkv"}
    assert sorted(rows) == list(range(3 * 64))
    for part, content in whole.items():
        stored = tensors[f"layers.0.{part}"].stored
        cuts = [stored.rows(first, count) for first, count in ((0, 5), (5, 40), (45, 19))]
        assert b"".join(bytes(map_tensor(cut)) for cut in cuts) == content


@pytest.mark.parametrize("part", ["qweight", "scales", "qzeros"])
def test_every_file_of_a_matrix_is_named(part: str, tmp_path: Path) -> None:
    """Also of a matrix whose parts lie in several: what is kept of its weights is kept for these files."""
    quantized, _ = write_quantized(tmp_path / "made", make_tiny_family(tmp_path / "source", "neox"), *ALL["gptq"])
    tensors = load_file(quantized / WEIGHTS)
    (quantized / WEIGHTS).unlink()
    apart = {name: tensors.pop(name) for name in list(tensors) if name.endswith(f"query_key_value.{part}")}
    shards = {"model-00001-of-00002.safetensors": tensors, "model-00002-of-00002.safetensors": apart}
    for name, content in shards.items():
        save_file(content, quantized / name, metadata={"format": "pt"})
    places = {tensor: name for name, content in shards.items() for tensor in content}
    write_json(quantized / "model.safetensors.index.json", {"metadata": {}, "weight_map": places})
    info = open_model(str(quantized)).tensors["layers.0.k"]
    assert {file.name for file in info.stored.files} == shards.keys()
