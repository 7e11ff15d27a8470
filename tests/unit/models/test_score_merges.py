"""The merges of SentencePiece vocabularies, from the scores of their pieces."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from headrace_engine.models.vocabulary import score_merges
from headrace_engine.models.vocabulary.score_merges import LONGEST_PIECE, merges_from_scores
from hypothesis import given
from hypothesis import strategies as st

TEXTS = st.lists(st.text("ab\0é\U0001f336", min_size=0, max_size=7), min_size=1, max_size=40)


def by_definition(tokens: list[str], scores: list[float], joins: list[bool]) -> list[tuple[str, str]]:
    """Every cut of every piece, best score first, then the longer left part, then the longer right part."""
    pairs = [
        (-score, -cut, cut - len(token), (token[:cut], token[cut:]))
        for token, score, joined in zip(tokens, scores, joins, strict=True)
        for cut in range(1, len(token))
        if joined and token[:cut] in tokens and token[cut:] in tokens
    ]
    return [pair for *_, pair in sorted(pairs, key=lambda found: found[:3])]


def merges(tokens: list[str], scores: list[float], joins: list[bool]) -> list[tuple[str, str]]:
    return merges_from_scores(tokens, np.array(scores, np.float64), np.array(joins))


@given(TEXTS, st.data())
def test_merges_are_all_cuts_by_score(tokens: list[str], data: st.DataObject) -> None:
    """Of pieces with equal scores too, with pieces that stand twice, and those that no merge makes."""
    scores = [data.draw(st.sampled_from([-2.0, -1.0, 0.0, 0.5])) for _ in tokens]
    joins = [data.draw(st.booleans()) for _ in tokens]
    assert merges(tokens, scores, joins) == by_definition(tokens, scores, joins)


def test_merges_do_not_depend_on_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = list(dict.fromkeys(chain("abc", *(("a" * n, "ab" * n, "c" + "a" * n) for n in range(1, 30)))))
    scores = [-float(len(token)) for token in tokens]
    expected = by_definition(tokens, scores, [True] * len(tokens))
    assert len(expected) > 500
    for characters in (1, 7, 100, 10**6):
        monkeypatch.setattr(score_merges, "_PORTION", characters)
        assert merges(tokens, scores, [True] * len(tokens)) == expected


def test_the_longest_piece_is_cut() -> None:
    half = "ab\U0001f336c" * (LONGEST_PIECE // 8)
    assert merges([half, "a", half + half], [0, 0, 0], [True] * 3) == [(half, half)]


def test_a_longer_piece_is_refused() -> None:
    with pytest.raises(
        ValueError, match=f"token 1 has {LONGEST_PIECE + 1} characters; allowed: at most {LONGEST_PIECE}"
    ):
        merges(["a", "a" * (LONGEST_PIECE + 1)], [0, 0], [True, True])
