"""Tokenizers made from a GGUF file's vocabulary give the ids that are published for it."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import gguf
import pytest
from headrace_engine.errors import BadModel
from headrace_engine.models.vocabulary.gguf import build_tokenizer
from headrace_engine.models.vocabulary.splitting import SPLITTINGS, pre_tokenizer
from support.models.published_vocabularies import published_ids, unpack
from support.models.template_corpus import LLAMA_CPP, llama_cpp_package, tokenizer_files

MODELS = f"{LLAMA_CPP}/vendor/llama.cpp/models"
KINDS = {
    **dict.fromkeys(
        [
            "command-r",
            "deepseek-coder",
            "deepseek-llm",
            "falcon",
            "gpt-2",
            "llama-bpe",
            "llama-spm",
            "mpt",
            "phi-3",
            "qwen2",
            "qwen35",
            "refact",
            "starcoder",
        ],
        "",
    ),
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
    """llama.cpp's models/, from $PEERS (bench/peers/README.md) or the package index."""
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


def _as_gguf(tokenizer: dict[str, Any], path: Path) -> Path:
    """A SentencePiece tokenizer.json as the vocabulary of a GGUF file."""
    vocabulary, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
    kinds = {0: 2, 1: 3, 2: 3, **dict.fromkeys(range(3, 259), 6)}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(sorted(vocabulary, key=vocabulary.__getitem__))
    writer.add_token_types([kinds.get(number, 1) for number in range(len(vocabulary))])
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.mark.soak
def test_t4_published_tokenizers_agree(all_vocabularies: Path, tmp_path: Path) -> None:
    """Vocabularies of GGUF files against the tokenizer.json of the same, special tokens within texts included."""
    from tokenizers import Tokenizer

    corpus = json.loads(Path(__file__).with_name("smollm2_ids.json").read_text(encoding="utf-8"))
    plain = [entry["text"] for entry in corpus]
    for name, content in tokenizer_files(tmp_path, ("llama2", "llama3", "qwen3"), "tokenizer.json"):
        theirs = Tokenizer.from_str(content.decode())
        kept = {"llama3": "ggml-vocab-llama-bpe.gguf", "qwen3": "ggml-vocab-qwen2.gguf"}.get(name)
        path = all_vocabularies / kept if kept else _as_gguf(json.loads(content), tmp_path / "spm.gguf")
        ours = build_tokenizer(path).tokenizer
        special = next(token.content for token in ours.get_added_tokens_decoder().values())
        texts = [*plain, *(f"{special}{text}" for text in plain), *(f"{text}{special} {text}" for text in plain)]
        assert [text for text in texts if _ids(ours, text) != _ids(theirs, text)] == [], name


def _byte_level_gguf(tokenizer: dict[str, Any], pre: str, path: Path) -> Path:
    """A byte-level tokenizer.json as the vocabulary of a GGUF file."""
    added = {token["id"]: token for token in tokenizer["added_tokens"]}
    pieces = {number: piece for piece, number in tokenizer["model"]["vocab"].items()}
    pieces |= {number: token["content"] for number, token in added.items()}
    numbers = range(max(pieces) + 1)
    kinds = [3 if number in added else 1 if number in pieces else 5 for number in numbers]
    writer = gguf.GGUFWriter(path, "gpt-oss")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([pieces.get(number, f"[PAD{number}]") for number in numbers])
    writer.add_token_types(kinds)
    writer.add_token_merges(
        [pair if isinstance(pair, str) else " ".join(pair) for pair in tokenizer["model"]["merges"]]
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.mark.soak
def test_ids_of_harmony_are_those_of_gpt_oss(tmp_path: Path) -> None:
    """o200k_harmony, as a GGUF file has it and as its tokenizer.json; "hello world" by its published ids."""
    from tokenizers import Tokenizer

    ((_, content),) = tokenizer_files(tmp_path, ("gptoss",), "tokenizer.json")
    theirs = Tokenizer.from_str(content.decode())
    ours = build_tokenizer(_byte_level_gguf(json.loads(content), "gpt-4o", tmp_path / "harmony.gguf")).tokenizer
    corpus = json.loads(Path(__file__).with_name("smollm2_ids.json").read_text(encoding="utf-8"))
    plain = [entry["text"] for entry in corpus]
    texts = [*plain, *(f"<|start|>assistant<|channel|>analysis<|message|>{text}<|end|>" for text in plain)]
    assert _ids(ours, "hello world") == [24912, 2375]
    assert [text for text in texts if _ids(ours, text) != _ids(theirs, text)] == []


@pytest.mark.soak
def test_splittings_are_those_of_published_tokenizers(tmp_path: Path) -> None:
    """The parts of texts by our name for a splitting, and by the tokenizer.json of the model."""
    from tokenizers import Tokenizer

    corpus = json.loads(Path(__file__).with_name("smollm2_ids.json").read_text(encoding="utf-8"))
    texts = [entry["text"] for entry in corpus]
    names = {"deepseek_v3": "deepseek-v3", "gpt4o": "gpt-4o"}
    for name, content in tokenizer_files(tmp_path, names, "tokenizer.json"):
        theirs, ours = Tokenizer.from_str(content.decode()).pre_tokenizer, pre_tokenizer(SPLITTINGS[names[name]])
        assert [text for text in texts if ours.pre_tokenize_str(text) != theirs.pre_tokenize_str(text)] == [], name
