"""Texts that branch are read for stop words, which end them where they end a text that is streamed."""

from __future__ import annotations

from headrace_engine.guided.vocabulary import Vocabulary
from hypothesis import given
from hypothesis import strategies as st
from support.models.stop_reference import decoder_of, effective
from support.models.vocabularies import bundle, byte_level, sentencepiece

BUNDLES = {name: bundle(make()) for name, make in (("bytes", byte_level), ("pieces", sentencepiece))}
VOCABULARIES = {name: Vocabulary(each, len(each.pieces)) for name, each in BUNDLES.items()}
WORDS = st.lists(st.text("abth e\n\u00e9\U0001f44d", min_size=1, max_size=4), min_size=1, max_size=3)


@given(st.sampled_from(list(BUNDLES)), st.data(), st.booleans())
def test_words_end_texts_where_streams_end(kind: str, data: st.DataObject, skips: bool) -> None:
    """Of any ids, special ones among them, and words that name special tokens, too."""
    tokens = BUNDLES[kind]
    names = [text for text in tokens.special_texts if text]
    words = [*data.draw(WORDS), *data.draw(st.lists(st.sampled_from(names), max_size=1))]
    frequent = tokens.encode_plain("ab the \u00e9\U0001f44d\n") + sorted(tokens.special_ids)
    ids = data.draw(st.lists(st.sampled_from(frequent) | st.integers(0, len(tokens.pieces) - 1), max_size=30))
    decoder = decoder_of(tokens, effective(stop_words=tuple(words), skip_special_tokens=skips))
    reader = VOCABULARIES[kind].word_reader(words, [], frozenset(), skips_special=skips)
    reading = reader.start
    for token_id in ids:
        decoder.push(token_id)
        reading, found = reader.read(reading, token_id)
        assert found == (decoder.stop is not None)
        if found:
            break


def test_readings_branch() -> None:
    tokens = BUNDLES["bytes"]
    reader = VOCABULARIES["bytes"].word_reader(["abc"], [], frozenset(), skips_special=True)
    a, b, c, d = (tokens.encode_plain(letter)[0] for letter in "abcd")
    reading, _ = reader.read(reader.start, a)
    reading, _ = reader.read(reading, b)
    assert [reader.read(reading, last)[1] for last in (d, c, a, c)] == [False, True, False, True]


def test_a_character_that_the_prompt_begins_belongs_to_the_text() -> None:
    tokens = BUNDLES["bytes"]
    single = {piece: token_id for token_id, piece in enumerate(tokens.pieces) if len(piece) == 1}
    first, second = (single[bytes([byte])] for byte in "\u00e9".encode())
    for prompt, expected in (([first], True), ([], False)):
        reader = VOCABULARIES["bytes"].word_reader(["\u00e9"], prompt, frozenset(), skips_special=True)
        assert reader.read(reader.start, second)[1] is expected


def test_special_tokens_that_are_kept_have_a_text() -> None:
    tokens = BUNDLES["bytes"]
    marked = next(token_id for token_id in sorted(tokens.special_ids) if tokens.pieces[token_id])
    name = tokens.pieces[marked].decode()
    for kept, expected in ((frozenset({marked}), True), (frozenset[int](), False)):
        reader = VOCABULARIES["bytes"].word_reader([name[1:]], [], kept, skips_special=True)
        assert reader.read(reader.start, marked)[1] is expected
