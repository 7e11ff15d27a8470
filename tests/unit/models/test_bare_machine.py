"""A machine with nothing but torch, transformers and numpy can import and use this part."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BLOCKED = ["gguf", "tokenizers", "huggingface_hub", "transformers", "safetensors", "grpc", "google", "headrace"]

OPEN_WITHOUT_TORCH = """
import sys
for name in {blocked!r} + ["torch", "numpy"]:
    sys.modules[name] = None
import headrace_engine.models.tokenizer
from headrace_engine.models.catalogue import open_model
for path in sys.argv[1:]:
    print(open_model(path).num_parameters)
"""

LOAD_WITH_TORCH = """
import sys
for name in {blocked!r}:
    sys.modules[name] = None
import torch
from headrace_engine.errors import BadModel
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.tokenizer import load_tokenizer
from headrace_engine.models.weights import load_weights
for path in sys.argv[1:]:
    print(len(load_weights(open_model(path), torch.bfloat16, torch.device("cpu"), lambda *_: None)))
try:
    load_tokenizer(open_model(path))
except BadModel as error:
    print(error.message)
"""


def run(script: str, *paths: Path) -> list[str]:
    """Lines that a fresh interpreter prints."""
    command = [sys.executable, "-c", script.format(blocked=BLOCKED), *map(str, paths)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_models_are_opened_without_torch_and_numpy(llama: Path, llama_gguf: Path) -> None:
    assert run(OPEN_WITHOUT_TORCH, llama, llama_gguf) == ["123200", "123200"]


def test_weights_are_read_with_torch_alone(llama: Path, llama_gguf: Path) -> None:
    *counts, refusal = run(LOAD_WITH_TORCH, llama, llama_gguf)
    assert counts == ["21", "21"]
    assert "needs the package tokenizers" in refusal
