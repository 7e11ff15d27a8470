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
_QWEN35 = (
    _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SLASHES = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _cased(ending: str, digits: str) -> str:
    """Return a pattern of words that capitals end, with an ending that may follow."""
    begin = r"[^\r\n\p{L}\p{N}]?"
    words = f"{begin}{_UPPER}*{_LOWER}+{ending}|{begin}{_UPPER}+{_LOWER}*{ending}"
    return f"{words}|{digits}{_SLASHES}"


_TEKKEN, _GPT4O = _cased("", r"\p{N}"), _cased(f"{_CONTRACTION}?", r"\p{N}{1,3}")
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)


@dataclass(frozen=True, slots=True)
class Splitting:
    """A way to split text.

    Attributes:
        patterns: regular expressions of the parts, applied one after the other; none means GPT-2's own pattern.
        single_digits: digits are separated before the pattern is applied.
        composes: text is normalized to NFC first.
        takes_whole: a part that is in the vocabulary becomes its id, regardless of the merges.
        adds_bos: default for whether text begins with the begin-of-sequence token.
    """

    patterns: tuple[str, ...] = ()
    single_digits: bool = False
    composes: bool = False
    takes_whole: bool = False
    adds_bos: bool = False


_GPT2 = Splitting()
_DIGITS = Splitting(single_digits=True)
_LLAMA3_SPLITTING = Splitting((_LLAMA3,), takes_whole=True, adds_bos=True)
_CL100K = Splitting((_LLAMA3,))
_QWEN2_SPLITTING = Splitting((_QWEN2,), composes=True)

SPLITTINGS: Mapping[str, Splitting] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "llama3": _LLAMA3_SPLITTING,
    "llama-v3": _LLAMA3_SPLITTING,
    "llama-bpe": _LLAMA3_SPLITTING,
    "smaug-bpe": _CL100K,
    "dbrx": _CL100K,
    "glm4": _CL100K,
    "chatglm-bpe": _CL100K,
    "falcon3": _LLAMA3_SPLITTING,
    "pixtral": _LLAMA3_SPLITTING,
    "tekken": Splitting((_TEKKEN,), takes_whole=True, adds_bos=True),
    "gpt-4o": Splitting((_GPT4O,)),
    "llama4": Splitting((_GPT4O,)),
    "deepseek-v3": Splitting(_DEEPSEEK3),
    "command-r": _DIGITS,
    "olmo": _GPT2,
    "qwen2": _QWEN2_SPLITTING,
    "deepseek-r1-qwen": _QWEN2_SPLITTING,
    "qwen35": Splitting((_QWEN35,)),
}
"""Ways to split by the value of `tokenizer.ggml.pre`."""


def pre_tokenizer(splitting: Splitting) -> Any:
    """Return the tokenizers.PreTokenizer that splits in this way and maps bytes to characters."""
    from tokenizers import Regex, pre_tokenizers

    steps: list[Any] = []
    if splitting.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    steps += [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in splitting.patterns]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not splitting.patterns))
    return pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
