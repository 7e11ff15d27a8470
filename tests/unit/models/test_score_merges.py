"""The merges of SentencePiece vocabularies, from the scores of their pieces."""

from __future__ import annotations

from collections import Counter
from itertools import chain, pairwise
from random import Random

import numpy as np
import pytest
from headrace_engine.models.vocabulary import score_merges
from headrace_engine.models.vocabulary.score_merges import LONGEST_PIECE, merges_from_scores
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models

UNKNOWN = "<unk>"
ATOMS = (UNKNOWN, "<0xC3>", "<0xA9>")
UNITS = st.sampled_from([*"aaabbb\0é\U0001f336", *ATOMS])
TEXTS = st.lists(st.lists(UNITS, max_size=7).map("".join), min_size=1, max_size=40)


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
    atoms = [index for index, token in enumerate(tokens) if token in ATOMS]
    return list(zip(*merges_from_scores(tokens, np.array(scores, np.float64), np.array(joins), atoms), strict=True))


def ids_of(tokens: list[str], pairs: list[tuple[str, str]], text: str) -> list[int]:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    unknown = UNKNOWN if UNKNOWN in vocabulary else None
    model = models.BPE(vocab=vocabulary, merges=pairs, fuse_unk=True, byte_fallback=True, unk_token=unknown)
    return [token.id for token in model.tokenize(text)]


@given(TEXTS, st.data())
def test_merges_are_those_cuts_that_texts_need(tokens: list[str], data: st.DataObject) -> None:
    """Also with equal scores, pieces that stand twice, pieces that no merge makes, and parts that texts begin as."""
    drawn = st.sampled_from([-2.0, -1.0, 0.0, 0.5]) if data.draw(st.booleans()) else st.floats(-9, 9)
    scores = [data.draw(drawn) for _ in tokens]
    joins = [data.draw(st.integers(0, 9)) < 9 for _ in tokens]
    found, cuts = merges(tokens, scores, joins), by_definition(tokens, scores, joins)
    rest = iter(cuts)
    assert all(pair in rest for pair in found)
    for text in data.draw(st.lists(st.text("ab\0é\U0001f336", max_size=14), min_size=1, max_size=20)):
        assert ids_of(tokens, found, text) == ids_of(tokens, cuts, text)


@pytest.mark.parametrize("seed", range(20))
def test_pieces_of_a_trained_vocabulary_are_made_in_one_way(seed: int) -> None:
    """Training joins the pair that is there most often, so that parts have better scores than what they join to."""
    draw = Random(seed)
    words = ["".join(draw.choices("abcd", k=draw.randint(1, 3))) for _ in range(30)]
    corpus = [list("".join(draw.choices(words, k=12))) for _ in range(40)]
    tokens = list("abcd")
    for _ in range(150):
        ((left, right), _), *_ = Counter(pair for text in corpus for pair in pairwise(text)).most_common(1)
        if left + right not in tokens:
            tokens.append(left + right)
        corpus = [joined(text, left, right) for text in corpus]
    scores, joins = [-float(index) for index in range(len(tokens))], [True] * len(tokens)
    found, cuts = merges(tokens, scores, joins), by_definition(tokens, scores, joins)
    assert len(found) <= min(1.1 * len(tokens), len(cuts) - 1)
    for _ in range(50):
        text = "".join(draw.choices(words, k=12))
        assert ids_of(tokens, found, text) == ids_of(tokens, cuts, text)


def joined(text: list[str], left: str, right: str) -> list[str]:
    """A text in which this pair is joined, from the left."""
    done: list[str] = []
    for piece in text:
        if done and (done[-1], piece) == (left, right):
            done[-1] += piece
        else:
            done.append(piece)
    return done


def test_a_cut_that_a_better_pair_crosses_is_left_out() -> None:
    tokens = ["a", "b", "c", "bc", "ab", "abc"]
    assert merges(tokens, [0, 0, 0, -1, -2, -3], [True] * 6) == [("b", "c"), ("a", "b"), ("a", "bc")]


def test_cuts_that_are_not_judged_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a file may need more rounds than any vocabulary."""
    monkeypatch.setattr(score_merges, "_MOST_ROUNDS", 0)
    tokens, scores = ["a", "b", "c", "bc", "ab", "abc"], [0.0, 0.0, 0.0, -1.0, -2.0, -3.0]
    assert merges(tokens, scores, [True] * 6) == by_definition(tokens, scores, [True] * 6)


def test_merges_do_not_depend_on_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = list(dict.fromkeys(chain("abc", *(("a" * n, "ab" * n, "c" + "a" * n) for n in range(1, 30)))))
    scores = [-float(len(token)) for token in tokens]
    expected = merges(tokens, scores, [True] * len(tokens))
    assert len(expected) > 100
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
