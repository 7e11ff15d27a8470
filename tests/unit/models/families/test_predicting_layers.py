"""Layers of GLM-4.5 that predict further ids: left out, with a warning, from either format of files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from headrace_engine.errors import BadModel
from headrace_engine.models.catalogue import open_model
from safetensors.torch import load_file, save_file
from support.models.tiny_gguf import write_gguf
from support.models.tiny_models import make_tiny_family

LAYERS = 3
PARTS = ("eh_proj", "enorm", "hnorm", "self_attn.q_proj", "shared_head.head")


def with_tensors(path: Path, names: list[str]) -> Path:
    tensors = load_file(path / "model.safetensors") | {name: torch.zeros(4, 4) for name in names}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


@pytest.fixture
def glm(tmp_path: Path) -> Path:
    return make_tiny_family(tmp_path / "glm", "glm4 moe")


def test_directories(glm: Path) -> None:
    plain = open_model(str(glm))
    found = open_model(str(with_tensors(glm, [f"model.layers.{LAYERS}.{part}.weight" for part in PARTS])))
    assert found.tensors.keys() == plain.tensors.keys()
    assert plain.warnings == ()
    (warning,) = found.warnings
    assert warning.startswith("not used, since they predict further ids: model.layers.3.")


@pytest.mark.parametrize("layer", [0, LAYERS])
def test_other_tensors_are_refused(layer: int, glm: Path) -> None:
    """A matrix of both inputs within the decoder, and a layer behind it without one."""
    name = f"model.layers.{layer}.{'enorm' if layer else 'eh_proj'}.weight"
    with pytest.raises(BadModel, match=f"does not have: {name}"):
        open_model(str(with_tensors(glm, [name])))


def test_gguf_files(glm: Path, tmp_path: Path) -> None:
    """They count such layers among the others."""
    plain = open_model(str(write_gguf(tmp_path / "plain.gguf", glm)))
    extra = {f"blk.{LAYERS}.{part}.weight": np.zeros((4, 4)) for part in ("nextn.eh_proj", "nextn.enorm", "attn_q")}
    more = {"glm4moe.block_count": LAYERS + 1, "glm4moe.nextn_predict_layers": 1}
    found = open_model(str(write_gguf(tmp_path / "more.gguf", glm, metadata=more, extra_tensors=extra)))
    assert found.spec.num_layers == plain.spec.num_layers == LAYERS
    assert found.tensors.keys() == plain.tensors.keys()
    (warning,) = found.warnings
    assert "not used: blk.3." in warning
