"""Splitting of text before merging in byte-level vocabularies, by its name in GGUF files.

The patterns are those of the original tokenizers; a vocabulary yields the right ids only with its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST
_QWEN2 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST


@dataclass(frozen=True, slots=True)
class Splitting:
    """A way to split text.

    Attributes:
        pattern: regular expression of the parts; "" means GPT-2's own pattern.
        single_digits: digits are separated before the pattern is applied.
        composes: text is normalized to NFC first.
        takes_whole: a part that is in the vocabulary becomes its id, regardless of the merges.
        adds_bos: default for whether text begins with the begin-of-sequence token.
    """

    pattern: str = ""
    single_digits: bool = False
    composes: bool = False
    takes_whole: bool = False
    adds_bos: bool = False


_GPT2 = Splitting()
_DIGITS = Splitting(single_digits=True)
_LLAMA3_SPLITTING = Splitting(_LLAMA3, takes_whole=True, adds_bos=True)

SPLITTINGS: Mapping[str, Splitting] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "llama3": _LLAMA3_SPLITTING,
    "llama-v3": _LLAMA3_SPLITTING,
    "llama-bpe": _LLAMA3_SPLITTING,
    "smaug-bpe": Splitting(_LLAMA3),
    "qwen2": Splitting(_QWEN2, composes=True),
}
"""Ways to split by the value of `tokenizer.ggml.pre`."""


def pre_tokenizer(splitting: Splitting) -> Any:
    """Return the tokenizers.PreTokenizer that splits in this way and maps bytes to characters."""
    from tokenizers import Regex, pre_tokenizers

    steps: list[Any] = []
    if splitting.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if splitting.pattern:
        steps.append(pre_tokenizers.Split(Regex(splitting.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not splitting.pattern))
    return pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
