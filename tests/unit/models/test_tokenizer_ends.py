"""End tokens and ids of tokenizers, and the bytes that ids stand for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.tokenizer import TokenizerBundle, load_tokenizer
from support.models.damage import edit_json
from support.models.tiny_gguf import write_gguf
from support.models.tiny_tokenizer import tiny_tokenizer
from unit.models.conftest import Copy, load


class TestEnds:
    """Tokens that encode puts around a text by itself."""

    @pytest.mark.parametrize("flags", [{}, {"add_bos_token": True}, {"add_bos_token": False, "add_eos_token": True}])
    def test_flags_of_tokenizer_config_give_way_to_tokenizer_json(
        self, copy: Copy, llama: Path, flags: dict[str, bool]
    ) -> None:
        from transformers import AutoTokenizer

        path = copy(llama)
        edit_json(path / "tokenizer_config.json", **flags)
        bundle = load(path)
        assert bundle.encode("Hello") == AutoTokenizer.from_pretrained(path).encode("Hello")
        assert not bundle.adds_bos

    def test_what_tokenizer_json_adds_is_kept(self, copy: Copy, llama: Path) -> None:
        from tokenizers import processors

        path = copy(llama)
        tokenizer = tiny_tokenizer()
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
        )
        tokenizer.enable_truncation(4)
        tokenizer.enable_padding(length=64)
        tokenizer.save(str(path / "tokenizer.json"))
        bundle = load(path)
        assert bundle.adds_bos
        assert bundle.encode("Hello") == [1, *bundle.encode("Hello", add_special_tokens=False)]
        assert len(bundle.encode("a b c d e f g h")) > 8

    @pytest.mark.parametrize("flag", [True, False])
    def test_the_flag_of_a_gguf_file(self, tmp_path: Path, llama: Path, flag: bool) -> None:
        metadata = {"tokenizer.ggml.add_bos_token": flag, "tokenizer.ggml.add_eos_token": not flag}
        bundle = load(write_gguf(tmp_path / "model.gguf", llama, metadata=metadata))
        ids = bundle.encode("Hello")
        assert (ids[0] == 1, ids[-1] == 2, bundle.adds_bos) == (flag, not flag, flag)

    def test_llama3_vocabularies_begin_with_bos_by_default(self, tmp_path: Path, llama: Path) -> None:
        metadata = {"tokenizer.ggml.add_bos_token": None}
        assert load(write_gguf(tmp_path / "llama3.gguf", llama, metadata=metadata)).adds_bos
        assert not load(write_gguf(tmp_path / "gpt2.gguf", llama, pre="gpt-2", metadata=metadata)).adds_bos


class TestBytes:
    def test_emoji_and_cjk_fall_apart_and_line_ends_merge(self, tiny: TokenizerBundle) -> None:
        assert [tiny.token_bytes(i) for i in tiny.encode("🙂")] == [b"\xf0", b"\x9f", b"\x99", b"\x82"]
        assert [tiny.token_bytes(i) for i in tiny.encode("水")] == [b"\xe6", b"\xb0", b"\xb4"]
        assert [tiny.token_bytes(i) for i in tiny.encode("?\n")] == [b"?\n"]

    def test_every_byte_has_an_id(self, tiny: TokenizerBundle, sentencepiece_gguf: Path) -> None:
        assert {bytes([byte]) for byte in range(256)} <= set(tiny.pieces)
        assert {bytes([byte]) for byte in range(256)} <= set(load(sentencepiece_gguf).pieces)
        assert tiny.missing_bytes == load(sentencepiece_gguf).missing_bytes == frozenset()

    def test_bytes_that_smollm2_lacks_are_told(self, smol: TokenizerBundle) -> None:
        assert smol.missing_bytes == {4, 6, 19, 20, 22, 29, 0xF1, 0xF2}

    def test_sentencepiece_pieces_spell_spaces(self, sentencepiece_gguf: Path) -> None:
        bundle = load(sentencepiece_gguf)
        ids = bundle.encode("hello the 水", add_special_tokens=False)
        assert [bundle.token_bytes(i) for i in ids] == [b" hello", b" the", b" ", b"\xe6", b"\xb0", b"\xb4"]

    def test_ids_outside_the_vocabulary_have_no_bytes(self, tiny: TokenizerBundle) -> None:
        assert [tiny.token_bytes(token_id) for token_id in (-1, 384, 10**9)] == [b"", b"", b""]

    def test_added_tokens_are_their_text(self, copy: Copy, llama: Path) -> None:
        """Also one with characters that stand for bytes elsewhere."""
        from tokenizers import AddedToken

        path = copy(llama)
        tokenizer = tiny_tokenizer()
        tokenizer.add_tokens([AddedToken("<é ü>", special=False, normalized=False)])
        tokenizer.save(str(path / "tokenizer.json"))
        files = open_model(str(path))
        assert "'<é ü>' (384)" in load_tokenizer(files).warnings[0]
        edit_json(path / "tokenizer_config.json", chat_template="x")
        model = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))
        model["added_tokens"][-1]["id"] = 383
        last = next(piece for piece, index in model["model"]["vocab"].items() if index == 383)
        del model["model"]["vocab"][last]
        model["model"]["merges"] = model["model"]["merges"][:-1]
        (path / "tokenizer.json").write_text(json.dumps(model), encoding="utf-8")
        bundle = load(path)
        assert bundle.token_bytes(383) == "<é ü>".encode()
        assert 383 not in bundle.special_ids


def test_a4_what_only_fills_up_a_gguf_vocabulary_is_no_id(sentencepiece_gguf: Path, llama: Path) -> None:
    bundle = load(sentencepiece_gguf)
    assert open_model(str(sentencepiece_gguf)).spec.vocab_size == 384
    assert 300 < bundle.vocab_size < 384
    assert bundle.holes == frozenset()
    assert len(bundle.pieces) == 384
    assert load(llama).vocab_size == 384


def test_a3_the_tokenizers_own_end_counts(copy: Copy, llama: Path) -> None:
    path = copy(llama)
    edit_json(path / "generation_config.json", eos_token_id=0)
    edit_json(path / "config.json", eos_token_id=None)
    bundle = load(path)
    assert bundle.eos_ids == (0, 2)
    assert "different ends: 0 by generation_config.json, 2 by the tokenizer ('<|im_end|>')" in bundle.warnings[0]
