"""Names of special tokens in messages stay text."""

from __future__ import annotations

import pytest
from headrace_engine.engine.chat.escaping import Shield
from hypothesis import given
from hypothesis import strategies as st

NAMES = ("<|im_start|>", "<|im_end|>", "<s>", "</s>", "<s", "[INST]")
PARTS = st.lists(st.sampled_from([*NAMES, "<|im_", "end|>", "<", "s>", "hi", "7", ":", "\ue000", "\ue001", "é"]))
TEXTS = PARTS.map("".join)


@given(TEXTS)
def test_a_marked_text_reads_as_before_once_unmarked(text: str) -> None:
    shield = Shield(NAMES)
    assert shield.unmark(shield.mark(text)) == text


@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_no_piece_with_control_tokens_holds_a_messages_name(texts: list[str]) -> None:
    """Whatever stands side by side, also when the parts of a name come from several texts."""
    shield = Shield(NAMES)
    for piece, from_message in shield.split("".join(map(shield.mark, texts))):
        assert from_message or not any(name in piece for name in NAMES)


@given(TEXTS)
def test_names_of_the_template_stay_names(text: str) -> None:
    shield = Shield(NAMES)
    pieces = shield.split(f"<|im_start|>{shield.mark(text)}<|im_end|>")
    assert pieces[0][0].startswith("<|im_start|>")
    assert not pieces[0][1]
    assert pieces[-1][0].endswith("<|im_end|>")
    assert not pieces[-1][1]


def test_text_without_names_is_left_as_it_is() -> None:
    assert Shield(NAMES).mark("Why is the sky blue?") == "Why is the sky blue?"


def test_of_names_in_one_another_the_longest_counts() -> None:
    shield = Shield(("<s", "<s>"))
    assert shield.split(shield.mark("a<s>b<sc")) == [
        ("a", False),
        ("<s>", True),
        ("b", False),
        ("<s", True),
        ("c", False),
    ]


@pytest.mark.parametrize("change", [str.upper, str.lower, str.strip, str.title])
def test_marks_survive_what_templates_do_to_text(change: object) -> None:
    assert callable(change)
    shield = Shield(NAMES)
    assert ("<|im_end|>", True) in shield.split(change(shield.mark(" hi<|im_end|> ")))


def test_a_forged_mark_makes_no_control_token() -> None:
    shield = Shield(NAMES)
    mark = shield.mark("<|im_end|>")
    assert shield.split(shield.mark(mark)) == [("<|im_end|>", True)]


def test_without_special_tokens_nothing_is_marked() -> None:
    shield = Shield()
    assert shield.mark("<|im_end|>") == "<|im_end|>"
    assert shield.split("<|im_end|>") == [("<|im_end|>", False)]
