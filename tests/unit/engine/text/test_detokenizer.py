"""Text by token: whole characters, nothing lost, nothing invented."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from support.models.vocabularies import byte_level, pieces, sentencepiece, stream

FUZZ_LISTS = 10_000
MULTILINGUAL = "你好👍🏽é—ﬁ"


def random_lists(tokenizer: Any, seed: int) -> list[list[int]]:
    """Lists of 1 to 60 ids. Three in four ids are single bytes, so that characters are cut in every way."""
    source = random.Random(seed)
    size = tokenizer.get_vocab_size()

    def draw() -> int:
        return source.randrange(3, 259) if source.random() < 0.75 else source.randrange(size)

    return [[draw() for _ in range(source.randint(1, 60))] for _ in range(FUZZ_LISTS)]


@pytest.mark.parametrize("skip", [True, False])
def test_bc004_random_ids_stream_to_the_decoding_of_the_whole(skip: bool) -> None:
    """Byte-level: the joined stream is what tokenizers decodes from all ids, invalid bytes included."""
    tokenizer = byte_level()
    for ids in random_lists(tokenizer, seed=4):
        assert "".join(stream(tokenizer, ids, skip=skip)) == tokenizer.decode(ids, skip_special_tokens=skip), ids


@pytest.mark.parametrize("skip", [True, False])
def test_bc004_random_byte_fallback_differs_in_invalid_runs(skip: bool) -> None:
    """SentencePiece: the one difference. Where a run of byte tokens is no UTF-8 as a whole, tokenizers shows one
    U+FFFD for each byte of the run, valid characters in it too; the stream keeps the characters that are valid.
    """
    tokenizer = sentencepiece()
    spelled = pieces(tokenizer)
    for ids in random_lists(tokenizer, seed=5):
        text = "".join(stream(tokenizer, ids, skip=skip))
        kept = [token_id for token_id in ids if not (skip and token_id < 3)]
        assert text == b"".join(spelled[token_id] for token_id in kept).decode(errors="replace"), ids
        if all(map(is_utf8, byte_runs(kept))):
            assert text == tokenizer.decode(ids, skip_special_tokens=skip), ids


def byte_runs(ids: list[int]) -> list[bytes]:
    """The bytes of each longest run of byte tokens."""
    runs: list[bytearray] = [bytearray()]
    for token_id in ids:
        if 3 <= token_id < 259:
            runs[-1].append(token_id - 3)
        elif runs[-1]:
            runs.append(bytearray())
    return list(map(bytes, runs))


def is_utf8(run: bytes) -> bool:
    try:
        run.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
def test_bc001_characters_that_split_over_tokens_stream_whole(make: Callable[[], Any]) -> None:
    tokenizer = make()
    ids = tokenizer.encode(MULTILINGUAL, add_special_tokens=False).ids
    assert len(ids) > len(MULTILINGUAL)
    deltas = stream(tokenizer, ids)
    assert not any("\ufffd" in delta for delta in deltas)
    assert "".join(deltas) == tokenizer.decode(ids)
    assert deltas[-1] == ""


def test_bc003_a_token_of_ascii_is_never_held_back() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("Why is the sky blue? The wheel of the world is in water.\n").ids
    assert all(stream(tokenizer, ids)[:-1])


@pytest.mark.parametrize(("count", "shown"), [(1, "ok \ufffd"), (2, "ok \ufffd"), (3, "ok \ufffd"), (4, "ok 😊")])
def test_bc006_a_cut_emoji_ends_in_one_replacement_character(count: int, shown: str) -> None:
    tokenizer = byte_level()
    head = tokenizer.encode("ok ").ids
    emoji = tokenizer.encode("😊").ids
    assert len(emoji) == 4
    deltas = stream(tokenizer, head + emoji[:count])
    assert "".join(deltas) == shown
    if count < 4:
        assert "".join(deltas[:-1]) == "ok "


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("make", [byte_level, sentencepiece])
def test_bc008_text_around_special_tokens_is_that_of_the_library(make: Callable[[], Any], skip: bool) -> None:
    tokenizer = make()
    word = tokenizer.encode(" Hello", add_special_tokens=False).ids
    emoji = tokenizer.encode("👍", add_special_tokens=False).ids
    for ids in ([*word, 2, *word], [1, *word, 2, 1, *emoji, 0, *word, 2], [2], [2, 2, *word]):
        assert "".join(stream(tokenizer, ids, skip=skip)) == tokenizer.decode(ids, skip_special_tokens=skip)


def test_a_skipped_token_inside_a_character_does_not_break_it() -> None:
    tokenizer = byte_level()
    first, *others = tokenizer.encode("👍").ids
    assert "".join(stream(tokenizer, [first, 2, *others])) == "👍"
    assert "".join(stream(tokenizer, [first, 2, *others], skip=False)).startswith("\ufffd<|im_end|>")


def test_text_of_a_token_depends_on_the_ids_before_it_alone() -> None:
    tokenizer = byte_level()
    ids = random_lists(tokenizer, seed=6)[0]
    for shorter, longer in pairwise(range(len(ids) + 1)):
        assert stream(tokenizer, ids[:longer])[:shorter] == stream(tokenizer, ids[:shorter])[:shorter]


def test_the_space_before_the_first_word_stays() -> None:
    """The text goes on where the prompt ended, so a space at its begin is part of it."""
    tokenizer = sentencepiece()
    ids = tokenizer.encode("Hello world", add_special_tokens=False).ids
    assert "".join(stream(tokenizer, ids)) == " Hello world"


def test_an_id_without_a_piece_leaves_no_text() -> None:
    """Models may have more ids than their tokenizer."""
    from headrace_engine.characters.detokenizer import Detokenizer

    decoder = Detokenizer(lambda token_id: b"", frozenset())
    assert (decoder.push(383), decoder.flush()) == ("", "")
