"""Text that ends at a stop: where it ends, what is kept back before, and that nothing but the ids decides."""

from __future__ import annotations

import random
from typing import Any

import pytest
from headrace_engine.engine.text.stops import stops_of
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.models.tokenizer import TokenizerBundle
from hypothesis import given
from hypothesis import strategies as st
from support.models.stop_reference import Outcome, Reference, decoder_of, effective, streamed
from support.models.vocabularies import bundle, byte_level, sentencepiece

BYTES, PIECES = bundle(byte_level()), bundle(sentencepiece())
IM_END = 2


def ids_of(text: str, tokens: TokenizerBundle = BYTES) -> list[int]:
    """The text byte by byte, so that every character is a token of its own or several."""
    single = {piece: token_id for token_id, piece in enumerate(tokens.pieces) if len(piece) == 1}
    return [single[bytes([byte])] for byte in text.encode()]


def deltas(text: str | list[int], **fields: Any) -> list[str]:
    """What each id of a text brings, and what comes with the end."""
    decoder = decoder_of(BYTES, effective(**fields))
    ids = ids_of(text) if isinstance(text, str) else text
    return [*(decoder.push(token_id) for token_id in ids), decoder.flush()]


def outcome(text: str | list[int], **fields: Any) -> Outcome:
    ids = ids_of(text) if isinstance(text, str) else text
    eos, min_new = fields.pop("eos", ()), fields.pop("min_new", 0)
    return streamed(decoder_of(BYTES, effective(**fields), eos, min_new), ids, eos, min_new)


class TestWords:
    @pytest.mark.parametrize(("include", "text"), [(False, "L M N "), (True, "L M N O P Q")])
    def test_bc013_a_word_of_several_tokens_ends_the_text(self, include: bool, text: str) -> None:
        found = outcome("L M N O P Q R S", stop_words=("O P Q",), include_stop=include)
        assert found == Outcome(11, text, ("STOP_WORDS", 0, "O P Q"))

    @pytest.mark.parametrize(("include", "text"), [(False, "Mars?"), (True, "Mars?\n")])
    def test_bc014_text_before_a_word_in_the_same_token_is_kept(self, include: bool, text: str) -> None:
        merged = BYTES.encode("?\n")
        assert len(merged) == 1
        found = outcome([*ids_of("Mars"), *merged], stop_words=("\n",), include_stop=include)
        assert found == Outcome(5, text, ("STOP_WORDS", 0, "\n"))

    def test_bc014_text_after_a_word_in_the_same_token_is_dropped(self) -> None:
        merged = BYTES.encode("?\n")
        found = outcome([*ids_of("Mars"), *merged], stop_words=("?",), include_stop=True)
        assert found == Outcome(5, "Mars?", ("STOP_WORDS", 0, "?"))

    def test_bc016_no_part_of_a_word_is_shown(self) -> None:
        shown = deltas("abc<START>zzz", stop_words=("<START>",))
        assert "".join(shown) == "abc"
        assert not any("<" in delta for delta in shown)

    def test_bc016_the_earliest_complete_word_wins(self) -> None:
        found = outcome("abc<START>zzz", stop_words=("START>z", "<START>"))
        assert found == Outcome(10, "abc", ("STOP_WORDS", 1, "<START>"))
        assert outcome("xabcd", stop_words=("abcd", "bc")) == Outcome(4, "xa", ("STOP_WORDS", 1, "bc"))

    def test_of_words_ending_together_the_longest_then_first_wins(self) -> None:
        found = outcome("xabc", stop_words=("c", "abc", "bc", "abc"))
        assert found == Outcome(4, "x", ("STOP_WORDS", 1, "abc"))

    def test_bc035_only_text_that_may_become_a_word_is_kept_back(self) -> None:
        assert deltas("ABCDEFGHIJ", stop_words=("DEFGHIJ",)) == [*"ABC", *[""] * 8]
        assert deltas("ABCDEFX", stop_words=("DEFGHIJ",)) == [*"ABC", "", "", "", "DEFX", ""]
        assert deltas("ABCDE", stop_words=("DEFGHIJ",)) == [*"ABC", "", "", "DE"]

    def test_bc035_a_word_that_begins_within_another_is_found(self) -> None:
        assert deltas("ababac", stop_words=("abac",)) == ["", "", "", "ab", "", "", ""]

    def test_bc003_text_that_begins_no_stop_word_is_never_delayed(self) -> None:
        text = "Why is the sky blue? The wheel of the world is in water."
        assert deltas(text, stop_words=("|", "~~"))[:-1] == list(text)

    def test_bc026_a_letter_that_never_comes_ends_nothing(self) -> None:
        assert outcome("abc", stop_words=("q",)) == Outcome(3, "abc")

    def test_bc017_a_word_is_found_however_it_is_spelled(self) -> None:
        for ids in (ids_of("a the end"), [*ids_of("a"), *BYTES.encode(" the"), *ids_of(" end")]):
            assert outcome(ids, stop_words=("the",)).text == "a "

    def test_a_word_of_characters_that_split_over_tokens(self) -> None:
        assert outcome("ok 👍 no", stop_words=("👍",)) == Outcome(7, "ok ", ("STOP_WORDS", 0, "👍"))


class TestSpecialTokens:
    @pytest.mark.parametrize(("include", "text"), [(False, "ab"), (True, "ab<|im_end|>")])
    @pytest.mark.parametrize("skips", [True, False])
    def test_bc022_a_special_token_may_be_given_as_text(self, skips: bool, include: bool, text: str) -> None:
        fields = {"stop_words": ("<|im_end|>",), "skip_special_tokens": skips, "include_stop": include}
        assert outcome([*ids_of("ab"), IM_END], **fields) == Outcome(3, text, ("STOP_WORDS", 0, "<|im_end|>"))

    def test_bc022_its_name_as_plain_text_ends_the_text_too(self) -> None:
        assert outcome("ab<|im_end|>c", stop_words=("<|im_end|>",)).text == "ab"

    def test_text_beside_a_special_token_is_part_of_the_word(self) -> None:
        fields = {"stop_words": ("b<|im_end|>\n",)}
        assert deltas([*ids_of("ab"), IM_END, *ids_of("\n")], **fields) == ["a", "", "", "", ""]
        assert deltas([*ids_of("ab"), IM_END, *ids_of("c")], **fields) == ["a", "", "", "bc", ""]

    def test_a_part_of_a_name_that_is_not_shown_ends_nothing(self) -> None:
        ids = [*ids_of("ab"), IM_END, *ids_of("c")]
        assert outcome(ids, stop_words=("end", "<")) == Outcome(4, "abc")
        shown = outcome(ids, stop_words=("end",), skip_special_tokens=False)
        assert shown == Outcome(3, "ab<|im_", ("STOP_WORDS", 0, "end"))

    def test_a_word_is_found_across_a_token_that_leaves_no_text(self) -> None:
        found = outcome([*ids_of("xa"), IM_END, *ids_of("b")], stop_words=("ab",))
        assert found == Outcome(4, "x", ("STOP_WORDS", 0, "ab"))

    def test_of_words_ending_together_one_with_the_token_is_longer(self) -> None:
        found = outcome([*ids_of("a"), IM_END, *ids_of("b")], stop_words=("b", "<|im_end|>b"))
        assert found == Outcome(3, "a", ("STOP_WORDS", 1, "<|im_end|>b"))

    def test_a_half_character_before_it_is_told(self) -> None:
        assert outcome([*ids_of("a"), *ids_of("é")[:1], IM_END], stop_words=("<|im_end|>",)).text == "a\ufffd"


class TestIds:
    def test_bc017_ids_stop_on_those_ids_only(self) -> None:
        (the,) = BYTES.encode(" the")
        assert outcome("a the end", stop_words_ids=((the,),)) == Outcome(9, "a the end")
        found = outcome([*ids_of("a"), the, *ids_of(" end")], stop_words_ids=((the,),))
        assert found == Outcome(2, "a", ("STOP_WORDS_IDS", 0, " the"))

    def test_ids_of_several_tokens_are_not_in_the_text(self) -> None:
        word = tuple(ids_of("cd"))
        assert deltas("abcde", stop_words_ids=(word,)) == ["a", "b", "", "", "", ""]
        assert deltas("abce", stop_words_ids=(word,)) == ["a", "b", "", "ce", ""]
        assert outcome("abcde", stop_words_ids=(word,), include_stop=True).text == "abcd"

    @pytest.mark.parametrize(("include", "text"), [(False, "a\ufffd"), (True, "aé")])
    def test_ids_that_cut_a_character(self, include: bool, text: str) -> None:
        first, second = ids_of("é")
        found = outcome([*ids_of("a"), first, second], stop_token_ids=(second,), include_stop=include)
        assert found == Outcome(3, text, ("STOP_TOKEN_IDS", 0, "\ufffd"))

    def test_the_longest_wins_and_then_the_order_of_the_lists(self) -> None:
        a, b = ids_of("ab")
        assert outcome("xab", stop_words_ids=((b,), (a, b)), stop_token_ids=(b,)).stop == ("STOP_WORDS_IDS", 1, "ab")
        assert outcome("xb", stop_words_ids=((b,),), stop_token_ids=(b,)).stop == ("STOP_WORDS_IDS", 0, "b")
        assert outcome("xb", stop_words=("b",), stop_words_ids=((b,),)).stop == ("STOP_WORDS", 0, "b")

    @pytest.mark.parametrize(("include", "text"), [(False, "ab"), (True, "ab<|im_end|>")])
    def test_a_special_stop_id_is_shown_where_it_is_asked_for(self, include: bool, text: str) -> None:
        found = outcome([*ids_of("ab"), IM_END], stop_token_ids=(IM_END,), include_stop=include)
        assert found == Outcome(3, text, ("STOP_TOKEN_IDS", 0, "<|im_end|>"))


class TestEos:
    @pytest.mark.parametrize(("include", "text"), [(False, "ab"), (True, "ab<|im_end|>")])
    def test_is_left_out_of_a_text_with_special_tokens_too(self, include: bool, text: str) -> None:
        config = effective(skip_special_tokens=False, include_stop=include, stop_words=("q",))
        ids = [*ids_of("ab"), IM_END]
        assert streamed(decoder_of(BYTES, config, (IM_END,)), ids, (IM_END,)) == Outcome(3, text)

    def test_an_ordinary_id_that_is_eos_is_left_out(self) -> None:
        (end,) = ids_of(".")
        assert outcome("ab.", eos=(end,)) == Outcome(3, "ab")

    def test_text_kept_back_comes_with_it(self) -> None:
        config = effective(stop_words=("bcd",))
        decoder = decoder_of(BYTES, config, (IM_END,))
        assert [decoder.push(token_id) for token_id in [*ids_of("abc"), IM_END]] == ["a", "", "", "bc"]
        assert decoder.flush() == ""

    def test_a_stop_that_names_it_wins(self) -> None:
        found = outcome([*ids_of("ab"), IM_END], stop_token_ids=(IM_END,), eos=(IM_END,))
        assert found.stop == ("STOP_TOKEN_IDS", 0, "<|im_end|>")

    def test_nothing_is_searched_where_special_tokens_leave_no_text(self) -> None:
        assert stops_of(effective(), (0, IM_END), 0, BYTES) is None
        assert stops_of(effective(include_stop=True, skip_special_tokens=False), (IM_END,), 0, BYTES) is None


class TestMinimum:
    @pytest.mark.parametrize("fields", [{"stop_words": ("\n",)}, {"stop_words_ids": (tuple(ids_of("\n")),)}])
    def test_bc019_a_stop_before_the_minimum_ends_nothing(self, fields: dict[str, Any]) -> None:
        text = "a\nbcdefg\nh\n"
        assert outcome(text, min_new=5, **fields).text == "a\nbcdefg"
        assert outcome(text, min_new=8, **fields).count == 9
        assert outcome(text, min_new=9, **fields).count == 11

    def test_a_stop_that_began_before_it_counts(self) -> None:
        assert outcome("xaab", stop_words=("aab",), min_new=3) == Outcome(4, "x", ("STOP_WORDS", 0, "aab"))
        assert outcome("aaa", stop_words=("aa",), min_new=2) == Outcome(3, "a", ("STOP_WORDS", 0, "aa"))


def configs(tokens: TokenizerBundle, alphabet: list[int]) -> st.SearchStrategy[tuple[GenerationConfig, list[int]]]:
    """Stops made of the ids of a small alphabet, so that they come often and overlap; and ids."""
    some = st.lists(st.sampled_from(alphabet), min_size=1, max_size=4)

    def text(ids: list[int]) -> str:
        return b"".join(map(tokens.token_bytes, ids)).decode(errors="ignore")

    words = st.lists(some.map(text).filter(bool), max_size=3).map(tuple)
    config = st.builds(
        effective,
        stop_words=words,
        stop_words_ids=st.lists(some.map(tuple), max_size=2).map(tuple),
        stop_token_ids=st.lists(st.sampled_from(alphabet), max_size=1).map(tuple),
        include_stop=st.booleans(),
        skip_special_tokens=st.booleans(),
    )
    return st.tuples(config, st.lists(st.sampled_from(alphabet), max_size=30))


def check_against_reference(
    tokens: TokenizerBundle, config: GenerationConfig, ids: list[int], eos: tuple[int, ...], min_new: int
) -> None:
    """Whole outcome, and text by id: whatever follows, nothing of it changes and none of it is a stop's."""
    expected = Reference(tokens, config, eos, min_new).outcome(ids)
    if stops_of(config, eos, min_new, tokens) is None:
        return
    assert streamed(decoder_of(tokens, config, eos, min_new), ids, eos, min_new) == expected
    decoder = decoder_of(tokens, config, eos, min_new)
    shown = ""
    for token_id in ids[: expected.count]:
        shown += decoder.push(token_id)
        assert expected.text.startswith(shown)


SMALL = [*ids_of("ab"), *BYTES.encode("?\n"), *BYTES.encode(".."), *ids_of("."), *ids_of("é"), 1, IM_END]
SMALL_PIECES = [PIECES.tokenizer.token_to_id(piece) for piece in ("a", "b", "ab", "\u2581a", "é", "<0xC3>", "<0xA9>")]


@given(configs(BYTES, SMALL), st.sampled_from([(), (IM_END,), tuple(ids_of("."))]), st.sampled_from([0, 0, 3]))
def test_byte_level_text_ends_where_the_rules_say(
    asked: tuple[GenerationConfig, list[int]], eos: tuple[int, ...], min_new: int
) -> None:
    check_against_reference(BYTES, *asked, eos, min_new)


@given(configs(PIECES, [*SMALL_PIECES, IM_END]), st.sampled_from([(), (IM_END,)]), st.sampled_from([0, 0, 3]))
def test_sentencepiece_text_ends_where_the_rules_say(
    asked: tuple[GenerationConfig, list[int]], eos: tuple[int, ...], min_new: int
) -> None:
    check_against_reference(PIECES, *asked, eos, min_new)


def test_thousands_of_stops_cost_no_more_than_one() -> None:
    """Every one of them is found, and text is only kept back for those that begin like it."""
    source = random.Random(1)
    words = tuple({"".join(source.choices("abcdef", k=12)) for _ in range(4000)})
    decoder = decoder_of(BYTES, effective(stop_words=words))
    assert "".join(map(decoder.push, ids_of("x" * 100))) == "x" * 100
    for place in (0, 1234, len(words) - 1):
        found = outcome("xyz" + words[place], stop_words=words)
        assert found == Outcome(15, "xyz", ("STOP_WORDS", place, words[place]))
