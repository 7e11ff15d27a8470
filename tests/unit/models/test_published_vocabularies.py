"""Tokenizers made from a GGUF file's vocabulary give the ids that are published for it."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest
from headrace_engine.errors import BadModel
from headrace_engine.models.vocabulary.gguf import build_tokenizer
from published import published_ids, unpack
from template_corpus import LLAMA_CPP, llama_cpp_package

MODELS = f"{LLAMA_CPP}/vendor/llama.cpp/models"
KINDS = {
    **dict.fromkeys(["gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2", "refact", "starcoder"], ""),
    **dict.fromkeys(["command-r", "deepseek-coder", "deepseek-llm", "falcon", "mpt", "qwen35"], "tokenizer.ggml.pre"),
    **dict.fromkeys(["bert-bge", "gemma-4"], "tokenizer.ggml.model"),
}
"""All vocabularies that come with ids; those that are not supported with the key that a refusal names."""


def different(path: Path) -> list[tuple[str, list[int], list[int]]]:
    """Texts whose ids are not the published ones, with these and with ours."""
    tokenizer = build_tokenizer(path).tokenizer
    found = [(text, ids, _ids(tokenizer, text)) for text, ids in published_ids(path)]
    assert len(found) >= 40
    return [(text, ids, ours) for text, ids, ours in found if ids != ours]


def _ids(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


@pytest.fixture(scope="module")
def llama2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("ggml-vocab-llama-spm.gguf", tmp_path_factory.mktemp("llama2"))


def test_n01_a_sentencepiece_gguf_gives_the_published_ids(llama2: Path) -> None:
    assert different(llama2) == []


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("    return x", [268, 736, 921]),
        (" Hello", [29871, 15043]),
        ("<s>[INST] Hello", [1, 518, 25580, 29962, 15043]),
        ("</s>\n", [2, 29871, 13]),
        ("", []),
    ],
)
def test_n01_spaces_come_before_texts_and_behind_special_tokens(llama2: Path, text: str, ids: list[int]) -> None:
    assert _ids(build_tokenizer(llama2).tokenizer, text) == ids


@pytest.fixture(scope="module")
def all_vocabularies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """llama.cpp's models/, from $PEERS (bench/PEERS.md) or the package index."""
    folder = tmp_path_factory.mktemp("peers")
    with tarfile.open(llama_cpp_package(folder)) as package:
        members = [member for member in package if member.name.startswith(f"{MODELS}/ggml-vocab-")]
        package.extractall(folder, members, filter="data")
    return folder / MODELS


@pytest.mark.soak
def test_n01_all_vocabularies_with_published_ids(all_vocabularies: Path) -> None:
    """Each gives the published ids, or is refused by the key that is not supported."""
    found = {path.name.removeprefix("ggml-vocab-").split(".")[0] for path in all_vocabularies.glob("*.inp")}
    assert found == KINDS.keys()
    for name, key in KINDS.items():
        path = all_vocabularies / f"ggml-vocab-{name}.gguf"
        if key:
            with pytest.raises(BadModel, match=f"{key} = .* is not supported; supported are"):
                build_tokenizer(path)
        else:
            assert different(path) == [], name
