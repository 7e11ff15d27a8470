"""The ids that a word may come as in a text."""

from __future__ import annotations

from collections.abc import Iterable

from headrace_engine.models.tokenizer import TokenizerBundle


def spellings(bundle: TokenizerBundle, words: Iterable[str]) -> tuple[tuple[int, ...], ...]:
    """The ids of each word at the beginning of a text, within one, and after a space; each once.

    A word that begins with white space is meant with it: it gets no other. Names of special tokens are those tokens.
    """
    found = (spelled for word in words for spelled in _spellings(bundle, word))
    return tuple(dict.fromkeys(spelled for spelled in found if spelled))


def _spellings(bundle: TokenizerBundle, word: str) -> Iterable[tuple[int, ...]]:
    forms = [word] if word[0].isspace() else [word, f" {word}"]
    first = bundle.encode(word, add_special_tokens=False)
    within = (bundle.encode_plain(form) for form in forms)
    # Some tokenizers put a space of their own before a text, and then one too many.
    texts = {form.encode() for form in forms}
    exact = (ids for ids in within if b"".join(map(bundle.token_bytes, ids)) in texts)
    return map(tuple, (first, *exact))
