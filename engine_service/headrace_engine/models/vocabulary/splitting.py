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
_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_FALCON = (r"[\p{P}$+<=>^~|`]+", _GPT2_WORDS, "[0-9]+", "[0-9][0-9][0-9]")
_SEED_CODER = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
_LETTERS = (
    "A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
"""Those with an upper and a lower case, as DeepSeek LLM lists them."""
_CHINESE_KOREAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_SIGNS = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_DEEPSEEK_LLM = (r"[\r\n]", rf"\s?[{_LETTERS}]+", _DEEPSEEK_SIGNS, r"(?<!\s)\s++$", _CHINESE_KOREAN, r"\p{N}")
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CHINESE_KOREAN, r"\p{N}")


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
    **dict.fromkeys(
        ("default", "gpt-2", "olmo", "phi-2", "exaone4", "granite-docling", "mellum", "a.x-4.0", "trillion"),
        _GPT2,
    ),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "exaone", "minerva-7b"), _DIGITS),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "midm-2.0"), _LLAMA3_SPLITTING),
    **dict.fromkeys(("smaug-bpe", "dbrx", "glm4", "chatglm-bpe"), _CL100K),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2"), _QWEN2_SPLITTING),
    **dict.fromkeys(("stablelm2", "megrez"), Splitting((_QWEN2,))),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2"), Splitting((_GPT4O,))),
    "qwen35": Splitting((_QWEN35,)),
    "tekken": Splitting((_TEKKEN,), takes_whole=True, adds_bos=True),
    "seed-coder": Splitting((_SEED_CODER,)),
    "deepseek-llm": Splitting(_DEEPSEEK_LLM),
    "deepseek-coder": Splitting(_DEEPSEEK_CODER),
    "deepseek-v3": Splitting(_DEEPSEEK3),
    "falcon": Splitting(_FALCON),
    "mpt": Splitting(composes=True),
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
