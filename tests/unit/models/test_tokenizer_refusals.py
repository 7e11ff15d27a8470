"""Tokenizers that are absent, damaged or of another model are refused by file and field."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from headrace_engine.errors import BadModel
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.tokenizer import TokenizerBundle, load_tokenizer
from support.models.damage import edit_json
from support.models.tiny_gguf import write_gguf
from support.models.tiny_models import make_tiny_llama
from unit.models.conftest import Copy


def load(path: Path) -> TokenizerBundle:
    return load_tokenizer(open_model(str(path)))


def refusal(path: Path) -> str:
    """What is said about a tokenizer that cannot be used; the model itself opens."""
    files = open_model(str(path))
    with pytest.raises(BadModel) as caught:
        load_tokenizer(files)
    return caught.value.message


def test_bc129_an_unknown_splitting_is_refused_by_name(tmp_path: Path, llama: Path) -> None:
    message = refusal(write_gguf(tmp_path / "model.gguf", llama, pre="martian"))
    assert "tokenizer.ggml.pre = 'martian'" in message
    assert "llama-bpe" in message


@pytest.mark.parametrize(
    ("metadata", "word"),
    [
        ({"tokenizer.ggml.model": "bert"}, "tokenizer.ggml.model = 'bert'"),
        ({"tokenizer.ggml.model": None}, "tokenizer.ggml.model is absent"),
        ({"tokenizer.ggml.merges": ["a b c"]}, "'a b c'"),
        ({"tokenizer.ggml.merges": ["q zz"]}, "merges"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "token_type"),
        ({"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.unknown_token_id": 999}, "unknown_token_id"),
    ],
)
def test_damaged_vocabularies_are_refused_by_key(
    tmp_path: Path, llama: Path, metadata: dict[str, object], word: str
) -> None:
    message = refusal(write_gguf(tmp_path / "model.gguf", llama, metadata=metadata))
    assert "model.gguf" in message
    assert word in message


def test_bc135_a_tokenizer_of_a_larger_model_is_refused(copy: Copy, tmp_path: Path, llama: Path) -> None:
    small = make_tiny_llama(tmp_path / "small", vocab_size=300)
    message = refusal(small)
    assert "384 ids" in message
    assert "300" in message


def test_a_padded_vocabulary_is_taken(tmp_path: Path) -> None:
    bundle = load(make_tiny_llama(tmp_path / "padded", vocab_size=400))
    assert len(bundle.pieces) == 384
    assert bundle.token_bytes(390) == b""


def test_no_tokenizer_is_refused(copy: Copy, llama: Path) -> None:
    path = copy(llama)
    (path / "tokenizer.json").unlink()
    assert "no tokenizer" in refusal(path)


def test_a_damaged_tokenizer_json_is_refused_by_name(copy: Copy, llama: Path) -> None:
    path = copy(llama)
    (path / "tokenizer.json").write_text('{"version": "1.0"}')
    assert "tokenizer.json: not a tokenizer" in refusal(path)


def test_pieces_that_are_no_bytes_are_refused(copy: Copy, llama: Path) -> None:
    from tokenizers import Tokenizer, models

    path = copy(llama)
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(path / "tokenizer.json"))
    assert "decoder none" in refusal(path)


def test_bc127_code_of_a_tokenizer_is_never_run(copy: Copy, llama: Path) -> None:
    path = copy(llama)
    (path / "own.py").write_text(f"open({str(path / 'marker')!r}, 'w').close()\n")
    edit_json(path / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.OwnTokenizer", None]})
    assert load(path).encode("Hello")
    shutil.move(path / "tokenizer.json", path / "vocab.json")
    assert "auto_map" in refusal(path)
    assert not (path / "marker").exists()


def test_an_unconvertible_tokenizer_model_is_refused_with_advice(copy: Copy, llama: Path) -> None:
    path = copy(llama)
    (path / "tokenizer.json").unlink()
    (path / "tokenizer.model").write_bytes(b"not a vocabulary")
    edit_json(path / "tokenizer_config.json", tokenizer_class="LlamaTokenizer")
    message = refusal(path)
    assert "Add tokenizer.json" in message
    assert "sentencepiece" in message
