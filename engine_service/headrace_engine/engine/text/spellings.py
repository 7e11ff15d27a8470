"""The ids that a word may come as in a text."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence

from headrace_engine.errors import InvalidArgument, shown
from headrace_engine.models.tokenizer import TokenizerBundle

WORD_COST = 100
"""What a word costs beside its text, in characters."""

SLICE = 16_000
"""Characters of words that are spelled in one turn: some hundredths of a second."""


def spelling_size(words: Iterable[str]) -> int:
    """How much work it is to spell words, in characters."""
    return sum(len(word) + WORD_COST for word in words)


def in_slices(words: Sequence[str]) -> list[list[str]]:
    """The same words in lists that measure SLICE at most, or are one word."""
    slices: list[list[str]] = []
    left = 0
    for word in words:
        cost = len(word) + WORD_COST
        if cost > left:
            slices.append([])
            left = max(SLICE, cost)
        slices[-1].append(word)
        left -= cost
    return slices


def spell_slices(
    bundle: TokenizerBundle, slices: Iterable[Sequence[str]]
) -> Generator[None, None, tuple[tuple[int, ...], ...]]:
    """What `spellings` finds for the words of all slices, with a pause after each."""
    found: dict[tuple[int, ...], None] = {}
    for words in slices:
        found.update(dict.fromkeys(spellings(bundle, words)))
        yield
    return tuple(found)


def spellings(bundle: TokenizerBundle, words: Iterable[str]) -> tuple[tuple[int, ...], ...]:
    """The ids of each word at the beginning of a text, within one, and after a space; each once.

    A word that begins with white space is meant with it: it gets no other. Names of special tokens are those tokens.
    """
    found = (spelled for word in words for spelled in _spelled(bundle, word))
    return tuple(dict.fromkeys(spelled for spelled in found if spelled))


def _spelled(bundle: TokenizerBundle, word: str) -> tuple[tuple[int, ...], ...]:
    try:
        return tuple(_spellings(bundle, word))
    except InvalidArgument as error:
        text = f"has {shown(word)}, which {error.message.removeprefix('prompt ')}"
        raise InvalidArgument.field("config.bad_words", text) from error


def _spellings(bundle: TokenizerBundle, word: str) -> Iterable[tuple[int, ...]]:
    forms = [word] if word[0].isspace() else [word, f" {word}"]
    first = bundle.encode(word, add_special_tokens=False)
    within = (bundle.encode_plain(form) for form in forms)
    # Some tokenizers put a space of their own before a text, and then one too many.
    texts = {form.encode() for form in forms}
    exact = (ids for ids in within if b"".join(map(bundle.token_bytes, ids)) in texts)
    return map(tuple, (first, *exact))
