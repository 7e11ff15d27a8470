"""Pieces of a chat give the ids of the whole text: spaces of the tokenizer's own stand where it puts them."""

from __future__ import annotations

from typing import Any

import pytest
from headrace_engine.engine.text.pieces import encode_pieces
from headrace_engine.models.tokenizer import TokenizerBundle
from headrace_engine.models.vocabulary.gguf import build_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from support.models.published_vocabularies import unpack
from support.models.vocabularies import SPACE, bundle, byte_level, sentencepiece

PIECES = st.lists(
    st.tuples(st.sampled_from(["a", " b", "</s>", "<s>", "[INST] ", "\n", " ", "</s> x", "x <s>"]), st.booleans()),
    max_size=6,
)


def with_steps(tokenizer: Any, **steps: Any) -> Any:
    """The same vocabulary with other steps before the model."""
    from tokenizers import Tokenizer

    changed = Tokenizer.from_str(tokenizer.to_str())
    for name, step in steps.items():
        setattr(changed, name, step)
    return changed


def prepending() -> Any:
    """The layout of Llama 2's tokenizer.json."""
    from tokenizers import normalizers

    steps = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    return with_steps(sentencepiece(), normalizer=steps, pre_tokenizer=None)


def always() -> Any:
    from tokenizers import pre_tokenizers

    return with_steps(sentencepiece(), pre_tokenizer=pre_tokenizers.Metaspace(SPACE, "always", split=False))


@pytest.fixture(scope="module")
def llama2(tmp_path_factory: pytest.TempPathFactory) -> TokenizerBundle:
    path = unpack("ggml-vocab-llama-spm.gguf", tmp_path_factory.mktemp("llama2"))
    return bundle(build_tokenizer(path).tokenizer)


def spelled(tokenizer: TokenizerBundle, ids: list[int]) -> str:
    return b"".join(map(tokenizer.token_bytes, ids)).decode()


@pytest.mark.parametrize("make", [sentencepiece, prepending, always, byte_level])
@given(pieces=PIECES)
def test_n01_pieces_spell_what_the_whole_text_spells(make: Any, pieces: list[tuple[str, bool]]) -> None:
    """Where names of special tokens are not written by a message, a text in pieces is the whole text."""
    tokenizer = bundle(make())
    plain = [(text, is_plain and text not in ("</s>", "<s>", "</s> x", "x <s>")) for text, is_plain in pieces]
    whole = tokenizer.encode("".join(text for text, _ in plain), add_special_tokens=False)
    assert spelled(tokenizer, encode_pieces(tokenizer, plain)) == spelled(tokenizer, whole)


@given(pieces=PIECES)
def test_n01_llama_2_puts_a_space_before_text_and_after_tokens(
    llama2: TokenizerBundle, pieces: list[tuple[str, bool]]
) -> None:
    ids = encode_pieces(llama2, pieces)
    expected = ""
    for text, is_plain in pieces:
        for part in [text] if is_plain else _apart(text):
            special = not is_plain and part in ("</s>", "<s>")
            goes_on = special or not part or (expected and not expected.endswith(("\0</s>", "\0<s>")))
            expected += f"\0{part}" if special else part if goes_on else f" {part}"
    assert spelled(llama2, ids) == expected.replace("\0", "")
    asked = sum(part in ("</s>", "<s>") for text, is_plain in pieces if not is_plain for part in _apart(text))
    assert sum(token_id in llama2.special_ids for token_id in ids) == asked


def _apart(text: str) -> list[str]:
    return [part for part in text.replace("</s>", "\n</s>\n").replace("<s>", "\n<s>\n").split("\n") if part] or [text]


def test_n01_a_name_that_a_message_wrote_gets_no_second_space(llama2: TokenizerBundle) -> None:
    pieces = [("<s>[INST] ", False), ("</s>", True), (" x [/INST]", False)]
    assert spelled(llama2, encode_pieces(llama2, pieces)) == "<s> [INST] </s> x [/INST]"
    assert encode_pieces(llama2, pieces)[:5] == [1, 518, 25580, 29962, 29871]


def test_n01_what_goes_on_is_encoded_alike_at_any_length(llama2: TokenizerBundle) -> None:
    long = " x" * 3_000
    assert llama2.encode_rest(long) == llama2.encode_plain(long) == llama2.encode_plain(" x") * 3_000
    assert spelled(llama2, llama2.encode_rest(f"{long}</s>{long}")) == f"{long}</s> {long}"
