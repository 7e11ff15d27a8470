"""Text behind a prompt that ends inside a character: the whole character, or nothing of the prompt's part."""

from __future__ import annotations

from typing import Any

import pytest
from headrace_engine.characters.detokenizer import Detokenizer, cut_of_prompt
from headrace_engine.engine.text.stopping import Decoder, StoppingDetokenizer
from headrace_engine.engine.text.stops import stops_of
from hypothesis import given
from hypothesis import strategies as st
from support.models.stop_reference import effective
from support.models.vocabularies import bundle, byte_level, sentencepiece

BUNDLES = {"byte level": bundle(byte_level()), "sentencepiece": bundle(sentencepiece())}
SKIPPED = frozenset({0, 1, 2})
PEPPER = "🌶"


def ids_of(data: bytes, kind: str = "byte level") -> list[int]:
    single = {piece: token_id for token_id, piece in enumerate(BUNDLES[kind].pieces) if len(piece) == 1}
    return [single[bytes([byte])] for byte in data]


def decoder_behind(prompt: list[int], kind: str = "byte level", **stops: Any) -> Decoder:
    token_bytes = BUNDLES[kind].token_bytes
    start = cut_of_prompt(prompt, token_bytes, SKIPPED)
    found = stops_of(effective(**stops), (), 0, BUNDLES[kind]) if stops else None
    if found is None:
        return Detokenizer(token_bytes, SKIPPED, start)
    return StoppingDetokenizer(found, token_bytes, SKIPPED, start)


def text_behind(prompt: bytes, generated: bytes, kind: str = "byte level", **stops: Any) -> str:
    decoder = decoder_behind(ids_of(prompt, kind), kind, **stops)
    return "".join([*map(decoder.push, ids_of(generated, kind)), decoder.flush()])


@pytest.mark.parametrize("kind", BUNDLES)
@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a5_a_prompt_that_ends_inside_a_character_is_completed(kind: str, missing: int) -> None:
    data = f"Hello {PEPPER}".encode()
    assert text_behind(data[:-missing], data[-missing:], kind) == PEPPER
    assert text_behind(data[:-missing], data[-missing:] + b"a", kind) == f"{PEPPER}a"


@given(text=st.text(max_size=12), place=st.integers(0, 48))
def test_a5_characters_across_prompt_and_answer_are_whole(text: str, place: int) -> None:
    """Wherever the text is cut, the answer has the characters that end in it."""
    data = text.encode()
    prompt, generated = data[:place], data[place:]
    whole = len(prompt.decode(errors="ignore"))
    assert text_behind(prompt, generated) == text[whole:]


@given(prompt=st.binary(max_size=6), generated=st.binary(max_size=6))
def test_a5_nothing_of_the_prompt_alone_is_shown(prompt: bytes, generated: bytes) -> None:
    """Bytes that are no text: the same as behind no prompt, where they do not complete the prompt's character."""
    tail = cut_of_prompt(ids_of(prompt), BUNDLES["byte level"].token_bytes, SKIPPED).data
    together = (tail + generated).decode(errors="replace")
    alone = generated.decode(errors="replace")
    shown = text_behind(prompt, generated)
    assert shown in (together, alone)
    assert tail or shown == alone
    assert generated or not shown


def test_a5_an_uncompleted_prompt_end_leaves_no_text() -> None:
    half = PEPPER.encode()[:2]
    assert text_behind(half, b"") == ""
    assert text_behind(half, b"a") == "a"
    assert text_behind(half, PEPPER.encode()) == PEPPER
    assert text_behind(half, PEPPER.encode()[2:3]) == "�"


def test_a5_special_tokens_of_the_prompt_are_passed_over() -> None:
    half, rest = ids_of(PEPPER.encode()[:2]), ids_of(PEPPER.encode()[2:])
    decoder = decoder_behind([*half, 1, 2])
    assert "".join(map(decoder.push, rest)) == PEPPER


@pytest.mark.parametrize(("include", "text"), [(False, ""), (True, PEPPER)])
def test_a5_a_stop_may_be_the_character_that_is_completed(include: bool, text: str) -> None:
    data = PEPPER.encode()
    assert text_behind(data[:2], data[2:] + b"abc", stop_words=(PEPPER,), include_stop=include) == text


def test_a5_a_stop_of_ids_behind_half_a_character_shows_none() -> None:
    half = PEPPER.encode()[:2]
    assert text_behind(half, b"abc", stop_token_ids=tuple(ids_of(b"a"))) == ""
    assert text_behind(half, b"xabc", stop_token_ids=tuple(ids_of(b"a"))) == "x"


@given(text=st.text(max_size=8), place=st.integers(0, 30), again=st.integers(0, 30))
def test_a5_a_hand_over_goes_on_with_the_same_text(text: str, place: int, again: int) -> None:
    """Ids that were delivered are read first, wherever they end: what follows has the text that it had."""
    data = text.encode()
    prompt, generated = ids_of(data[:place]), ids_of(data[place:])
    first, second = decoder_behind(prompt), decoder_behind(prompt)
    shown = [*map(first.push, generated), first.flush()]
    for token_id in generated[:again]:
        second.push(token_id)
    assert "".join([*map(second.push, generated[again:]), second.flush()]) == "".join(
        shown[min(again, len(generated)) :]
    )
