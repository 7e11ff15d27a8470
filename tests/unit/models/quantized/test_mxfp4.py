"""gpt-oss in MXFP4: its weights to the last bit, as numbers and as codes, and the ids of transformers with these."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from headrace_engine.backends.cpu.weights.storage import Storage
from headrace_engine.config import ComputeDtype
from headrace_engine.errors import BadModel
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.mapped import map_tensor
from headrace_engine.models.table_rows import MXFP4
from headrace_engine.models.weights import load_weights
from headrace_engine.native import Format, PackedMatrix
from safetensors.torch import load_file, save_file
from support.backends.cpu_sequences import cpu_model
from support.models.damage import edit_json
from support.models.quantized_checkpoints import WEIGHTS
from support.models.tiny_gguf import write_gguf
from support.models.tiny_mxfp4 import write_mxfp4
from unit.backends.serialize.conftest import write
from unit.models.quantized.test_quantized_checkpoints import check

Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model in blocks, and as numbers."""
    return write_mxfp4(tmp_path_factory.mktemp("mxfp4"))


def weights(path: Path) -> Tensors:
    return load_weights(open_model(str(path)), torch.float32, torch.device("cpu"), lambda *_: None)


def of_expert(plain: Tensors, name: str) -> torch.Tensor:
    """A matrix or bias of an expert, by canonical name, as the oracle's checkpoint has it."""
    _, layer, _, number, part = name.split(".")
    end = "_bias" if part.endswith("_bias") else ""
    prefix, part = f"model.layers.{layer}.mlp.experts", part.removesuffix("_bias")
    joined = plain[f"{prefix}.{'down' if part == 'down' else 'gate_up'}_proj{end}"][int(number)]
    found = joined if part == "down" else joined[..., part == "up" :: 2]
    return found if end else found.T


@pytest.mark.parametrize("kind", ["quantized", "plain", "gguf", "headrace"])
def test_weights_are_those_of_transformers(kind: str, made: tuple[Path, Path], tmp_path: Path) -> None:
    path = dict(zip(("quantized", "plain"), made, strict=True)).get(kind, tmp_path)
    if kind == "gguf":
        path = write_gguf(tmp_path / "tiny.gguf", made[1], "MXFP4")
    elif kind == "headrace":
        write(open_model(str(made[0])), tmp_path, Storage(ComputeDtype.AUTO))
    plain, found = load_file(made[1] / WEIGHTS), weights(path)
    experts = [name for name in found if ".experts." in name]
    assert len(experts) == 3 * 6 * 6
    for name in experts:
        assert torch.equal(found[name], of_expert(plain, name)), name


def test_the_cpu_backend_keeps_codes(made: tuple[Path, Path]) -> None:
    plain = load_file(made[1] / WEIGHTS)
    with cpu_model(made[0], dtype=ComputeDtype.BFLOAT16) as model:
        matrices = {name: each for name, each in model.weights.tensors.items() if isinstance(each, PackedMatrix)}
        experts = {name: each for name, each in matrices.items() if ".experts." in name}
        assert len(experts) == 3 * 6 * 3
        for name, packed in experts.items():
            assert packed.matrix.format is Format.INT4
            rows = torch.from_numpy(np.stack([packed.row(row) for row in range(packed.matrix.outputs)]))
            assert torch.equal(rows, of_expert(plain, name)), name


def test_ids_are_those_of_transformers(made: tuple[Path, Path]) -> None:
    check(*made)


def test_codes_and_scales_are_those_of_the_published_formula() -> None:
    """e2m1 has 0, 0.5, 1, 1.5, 2, 3, 4 and 6; e8m0 is 2 to the power of its code less 127."""
    pairs = np.arange(256, dtype=np.uint8)
    for scale in (0, 1, 126, 127, 200, 252):
        rows = np.concatenate([np.full((16, 1), scale, np.uint8), pairs.reshape(16, 16)], axis=1)
        got = MXFP4.floats(rows, 32).astype(np.float64)
        codes = np.concatenate([pairs.reshape(16, 16) & 15, pairs.reshape(16, 16) >> 4], axis=1).astype(int)
        exponent, half = codes >> 1 & 3, codes & 1
        size = np.where(exponent == 0, half / 2, (1 + half / 2) * 2.0 ** (exponent - 1))
        np.testing.assert_array_equal(got, np.where(codes & 8, -size, size) * 2.0 ** (scale - 127))


def _no_number(tensors: Tensors) -> None:
    tensors["model.layers.1.mlp.experts.down_proj_scales"][2, 3, 1] = 255


def _no_scales(tensors: Tensors) -> None:
    del tensors["model.layers.1.mlp.experts.down_proj_scales"]


def _other_scales(tensors: Tensors) -> None:
    tensors["model.layers.0.mlp.experts.gate_up_proj_scales"] = torch.zeros(6, 256, 3, dtype=torch.uint8)


def _fewer_experts(tensors: Tensors) -> None:
    for end in ("blocks", "scales"):
        name = f"model.layers.0.mlp.experts.gate_up_proj_{end}"
        tensors[name] = tensors[name][:5].contiguous()


def _both(tensors: Tensors) -> None:
    tensors["model.layers.0.mlp.experts.down_proj"] = torch.zeros(6, 128, 64)


REFUSED: list[tuple[Callable[[Tensors], None], str]] = [
    (_no_number, "tensor model.layers.1.mlp.experts.down_proj_scales holds scales that are no numbers"),
    (_no_scales, "tensor model.layers.1.mlp.experts.down_proj_scales is absent, but model.layers.1"),
    (_other_scales, r"gate_up_proj_scales is U8 \[6, 256, 3\], but the quantized module needs U8 \[6, 256, 2\]"),
    (_fewer_experts, r"gate_up_proj is \[5, 256, 64\], but config.json describes .* with \[6, 256, 64\]"),
    (_both, "down_proj is there both quantized and as numbers"),
]


@pytest.mark.parametrize(("change", "words"), REFUSED, ids=[change.__name__ for change, _ in REFUSED])
def test_what_does_not_fit_is_refused(change: Any, words: str, tmp_path: Path) -> None:
    path = write_mxfp4(tmp_path, num_hidden_layers=2)[0]
    tensors = load_file(path / WEIGHTS)
    change(tensors)
    save_file(tensors, path / WEIGHTS)
    with pytest.raises(BadModel, match=words):
        for info in open_model(str(path)).tensors.values():
            map_tensor(info.stored)


def test_blocks_without_settings_are_refused(tmp_path: Path) -> None:
    path = write_mxfp4(tmp_path, num_hidden_layers=2)[0]
    edit_json(path / "config.json", quantization_config=None)
    with pytest.raises(BadModel, match="quantization_config is absent and must describe the quantized modules"):
        open_model(str(path))
