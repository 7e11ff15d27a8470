"""A model as written in our own format."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from headrace_engine.backends.cpu.weights.storage import Storage
from headrace_engine.backends.serialize.writer import serialize
from headrace_engine.config import ComputeDtype, WeightQuant
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.files import ModelFiles
from headrace_engine.models.weights import read_tensor
from support.models.tiny_models import make_tiny_qwen2

CODED = {"INT8": Storage(ComputeDtype.AUTO, WeightQuant.INT8), "INT4": Storage(ComputeDtype.AUTO, WeightQuant.INT4, 32)}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    """A model with biases and a tied head."""
    return open_model(str(make_tiny_qwen2(tmp_path_factory.mktemp("source") / "qwen", shards=2)))


@pytest.fixture(scope="module")
def written(source: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same model with weights in 8 bits, as m.asmodel and m.asparam."""
    folder = tmp_path_factory.mktemp("written")
    assert write(source, folder, CODED["INT8"])
    return folder


def write(files: ModelFiles, folder: Path, storage: Storage, **options: Any) -> bool:
    done: list[tuple[int, int | None]] = []
    options = {"skip_if_exists": False, **options}
    was = serialize(files, folder, "m", storage, progress=lambda _, *counts: done.append(counts), **options)
    assert not was or (done[0][0], done[-1]) == (0, (files.weight_bytes, files.weight_bytes))
    return was


CPU = torch.device("cpu")


def values(files: ModelFiles, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return {name: read_tensor(info, dtype, CPU) for name, info in files.tensors.items()}


@pytest.fixture
def copy(written: Path, tmp_path: Path) -> Path:
    shutil.copytree(written, tmp_path / "copy")
    return tmp_path / "copy"
