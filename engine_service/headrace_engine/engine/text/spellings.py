"""The token sequences by which a word may appear in a text."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence

from headrace_engine.errors import InvalidArgument, shown
from headrace_engine.models.tokenizer import TokenizerBundle

WORD_COST = 100
"""Fixed cost of a word, in characters."""

SLICE = 16_000
"""Cost of the words of one slice, in characters: some hundredths of a second of work."""


def spelling_size(words: Iterable[str]) -> int:
    """Return the cost of spelling words, in characters."""
    return sum(len(word) + WORD_COST for word in words)


def in_slices(words: Sequence[str]) -> list[list[str]]:
    """Split words into lists that cost at most SLICE, or have one word."""
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
    """Return the `spellings` of all slices, with a `yield` after each."""
    found: dict[tuple[int, ...], None] = {}
    for words in slices:
        found.update(dict.fromkeys(spellings(bundle, words)))
        yield
    return tuple(found)


def spellings(bundle: TokenizerBundle, words: Iterable[str]) -> tuple[tuple[int, ...], ...]:
    """Return the ids of each word at the start of a text, within one, and after a space, without duplicates.

    A word that begins with white space gets no further space. Names of special tokens become those tokens.
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
    # Some tokenizers add a space before a text, which makes one too many here.
    texts = {form.encode() for form in forms}
    exact = (ids for ids in within if b"".join(map(bundle.token_bytes, ids)) in texts)
    return map(tuple, (first, *exact))
