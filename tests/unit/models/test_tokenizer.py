"""Tokenizers give the ids of the original, from every kind of file, and the bytes that ids stand for."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from headrace_engine.errors import BadModel, InvalidArgument
from headrace_engine.models.tokenizer import TokenizerBundle
from hypothesis import given
from hypothesis import strategies as st
from support.models.damage import edit_json
from support.models.tiny_gguf import write_gguf
from support.models.tiny_tokenizer import CHAT_TEMPLATE, SPECIAL_TOKENS, tiny_vocabulary
from unit.models.conftest import Copy, load

CORPUS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("smollm2_ids.json").read_text(encoding="utf-8"))
"""Texts with the ids that SmolLM2's own tokenizer gives: its digits are split before GPT-2's pattern is applied."""
TEXTS: list[str] = [entry["text"] for entry in CORPUS]


def text_of(bundle: TokenizerBundle, ids: list[int]) -> str:
    return b"".join(map(bundle.token_bytes, ids)).decode()


class TestSmolLM2:
    def test_bc129_ids_equal_the_original_on_a_multilingual_corpus(self, smol: TokenizerBundle) -> None:
        assert len(CORPUS) >= 200
        different = [entry["text"] for entry in CORPUS if smol.encode(entry["text"]) != entry["ids"]]
        assert different == []

    def test_bc129_bytes_give_the_text_back(self, smol: TokenizerBundle) -> None:
        assert all(text_of(smol, entry["ids"]) == entry["text"] for entry in CORPUS)

    def test_bc129_special_tokens_bos_and_roles(self, smol: TokenizerBundle) -> None:
        assert smol.special_ids == set(range(17))
        assert smol.special_texts[:3] == ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
        assert (smol.bos_id, smol.bos_text, smol.adds_bos) == (1, "<|im_start|>", False)
        assert smol.template_variables["eos_token"] == "<|im_end|>"
        assert (smol.chat_template or "").startswith("{% for message in messages %}")
        assert len(smol.pieces) == 49152
        assert all(smol.pieces)

    @given(st.text(max_size=60))
    def test_any_text_comes_back_without_bytes_it_has_no_ids_for(self, smol: TokenizerBundle, text: str) -> None:
        ids = smol.encode(text)
        spelled = b"".join(map(smol.token_bytes, ids))
        assert spelled == bytes(byte for byte in text.encode() if byte not in smol.missing_bytes)
        assert len(spelled) <= smol.max_token_bytes * len(ids)


class TestAgainstTransformers:
    """The same texts through transformers' own tokenizer of the same files."""

    def test_bc129_a_directory(self, llama: Path, tiny: TokenizerBundle) -> None:
        from transformers import AutoTokenizer

        theirs = AutoTokenizer.from_pretrained(llama)
        assert [tiny.encode(text) for text in TEXTS] == [theirs.encode(text) for text in TEXTS]
        assert tiny.template_variables == {
            name: token for name, token in theirs.special_tokens_map.items() if isinstance(token, str)
        }

    def test_bc129_a_byte_level_gguf(self, llama_gguf: Path, tiny: TokenizerBundle) -> None:
        from transformers import AutoTokenizer

        ours = load(llama_gguf)
        theirs = AutoTokenizer.from_pretrained(llama_gguf.parent, gguf_file=llama_gguf.name)
        ids = [ours.encode(text, add_special_tokens=False) for text in TEXTS]
        assert ids == [theirs.encode(text, add_special_tokens=False) for text in TEXTS]
        assert ids == [tiny.encode(text) for text in TEXTS]
        assert ours.special_ids == set(theirs.all_special_ids) == tiny.special_ids
        assert ours.pieces == tiny.pieces

    def test_bc129_a_sentencepiece_gguf(self, sentencepiece_gguf: Path) -> None:
        """Spaces that begin a text or follow a special token differ in transformers' reading of such files.

        test_published_vocabularies holds those to the ids of the original.
        """
        from transformers import AutoTokenizer

        ours = load(sentencepiece_gguf)
        theirs = AutoTokenizer.from_pretrained(sentencepiece_gguf.parent, gguf_file=sentencepiece_gguf.name)
        texts = [text for text in TEXTS if not text.startswith(" ") and "> " not in text]
        assert [ours.encode(text) for text in texts] == [theirs.encode(text) for text in texts]
        assert ours.special_ids == set(theirs.all_special_ids) == {0, 1, 2}
        assert (ours.bos_text, ours.adds_bos) == ("<s>", True)

    def test_bc129_qwen2s_splitting_and_composition(self, tmp_path: Path, llama: Path) -> None:
        """Against the tokenizer class of the original: its GGUF files do not say that it composes characters."""
        from transformers import Qwen2Tokenizer

        ours = load(write_gguf(tmp_path / "model.gguf", llama, pre="qwen2"))
        theirs = self._of_class(Qwen2Tokenizer, pad_token=SPECIAL_TOKENS[0])
        theirs.add_special_tokens({"additional_special_tokens": list(SPECIAL_TOKENS)})
        assert [ours.encode(text) for text in TEXTS] == [theirs.encode(text) for text in TEXTS]
        assert ours.encode("e\u0301") == ours.encode("\u00e9")

    @pytest.mark.parametrize("pre", ["gpt-2", "default"])
    def test_bc129_gpt2s_splitting(self, tmp_path: Path, llama: Path, pre: str) -> None:
        from transformers import GPT2Tokenizer

        ours = load(write_gguf(tmp_path / "model.gguf", llama, pre=pre))
        theirs = self._of_class(GPT2Tokenizer, bos_token=None, eos_token=None)
        theirs.add_special_tokens({"additional_special_tokens": list(SPECIAL_TOKENS)})
        assert [ours.encode(text) for text in TEXTS] == [theirs.encode(text) for text in TEXTS]

    def test_files_without_tokenizer_json_are_converted(self, copy: Copy, llama: Path) -> None:
        from transformers import AutoTokenizer

        path = copy(llama)
        (path / "tokenizer.json").unlink()
        vocabulary, merges = tiny_vocabulary()
        (path / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
        (path / "merges.txt").write_text("\n".join(" ".join(pair) for pair in merges), encoding="utf-8")
        edit_json(path / "tokenizer_config.json", tokenizer_class="GPT2Tokenizer")
        ours, theirs = load(path), AutoTokenizer.from_pretrained(path)
        assert [ours.encode(text) for text in TEXTS] == [theirs.encode(text) for text in TEXTS]

    @staticmethod
    def _of_class(tokenizer_class: Any, **options: Any) -> Any:
        """A tokenizer of one of transformers' classes with the tiny vocabulary."""
        return tokenizer_class(*tiny_vocabulary(), unk_token=None, **options)


class TestPlain:
    """Text whose special-looking parts are nothing but text."""

    @pytest.mark.parametrize("name", [*SPECIAL_TOKENS, "x<|im_end|>y", "", " <|im_end|>"])
    def test_byte_level(self, tiny: TokenizerBundle, name: str) -> None:
        ids = tiny.encode_plain(name)
        assert tiny.special_ids.isdisjoint(ids)
        assert text_of(tiny, ids) == name

    def test_ordinary_text_has_its_ordinary_ids(self, smol: TokenizerBundle) -> None:
        texts = [text for text in TEXTS if not any(special in text for special in smol.special_texts)]
        assert [smol.encode_plain(text) for text in texts] == [smol.encode(text) for text in texts]

    @pytest.mark.parametrize("name", ["<s>", "</s>", "<unk>", "a </s> b"])
    def test_sentencepiece(self, sentencepiece_gguf: Path, name: str) -> None:
        bundle = load(sentencepiece_gguf)
        ids = bundle.encode_plain(name)
        assert bundle.special_ids.isdisjoint(ids)
        assert text_of(bundle, ids) == name

    def test_a_name_that_the_vocabulary_holds_as_a_whole(self, tmp_path: Path, llama: Path) -> None:
        """Llama 3's splitting takes a piece as it is when the vocabulary has it: here that is a control token."""
        tokens = list(tiny_vocabulary()[0])
        tokens[2] = "END"
        bundle = load(write_gguf(tmp_path / "model.gguf", llama, metadata={"tokenizer.ggml.tokens": tokens}))
        assert bundle.encode("END") == [2]
        assert text_of(bundle, bundle.encode_plain("END")) == "END"
        assert 2 not in bundle.encode_plain("END")


def test_a_tokenizer_may_be_used_from_several_threads(smol: TokenizerBundle) -> None:
    with ThreadPoolExecutor(4) as threads:
        plain = threads.map(smol.encode_plain, ["<|im_end|>"] * 200)
        ids = threads.map(smol.encode, ["<|im_end|>"] * 200)
        assert all(2 not in found for found in plain)
        assert all(found == [2] for found in ids)


def test_the_models_own_chat_template_comes_along(tiny: TokenizerBundle) -> None:
    assert tiny.chat_template == CHAT_TEMPLATE


def test_half_a_surrogate_pair_is_refused(tiny: TokenizerBundle) -> None:
    with pytest.raises(InvalidArgument, match="surrogate"):
        tiny.encode("a\ud800b")


def test_a_vocabulary_beyond_the_rows_is_another_models(copy: Copy, llama: Path) -> None:
    """Added tokens may lie there; what the tokenizer makes of any text may not."""
    path = copy(llama)
    tokenizer = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["model"]["vocab"]["more"] = 384
    (path / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    with pytest.raises(BadModel, match=r"has 385 ids \(the last is 'more'\), but the model only 384"):
        load(path)


def test_n01_a_gguf_that_does_not_name_its_splitting_is_told(tmp_path: Path, llama: Path) -> None:
    metadata = {"tokenizer.ggml.pre": None}
    bundle = load(write_gguf(tmp_path / "model.gguf", llama, metadata=metadata))
    assert any("tokenizer.ggml.pre does not name" in warning for warning in bundle.warnings)
    assert load(write_gguf(tmp_path / "named.gguf", llama)).warnings == ()
