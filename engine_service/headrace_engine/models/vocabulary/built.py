"""The result of building a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BuiltTokenizer:
    """A tokenizers.Tokenizer with further properties from a model's files.

    Attributes:
        named: text of its special tokens by the name that chat templates use.
        unused: ids that only pad the vocabulary.
        warnings: sentences about likely mistakes.
    """

    tokenizer: Any
    named: Mapping[str, str]
    unused: frozenset[int] = frozenset()
    warnings: tuple[str, ...] = ()


def set_ends(tokenizer: Any, bos: str | None, eos: str | None) -> None:
    """Have a tokenizer put these tokens before and after a text when it adds special tokens; None: no token."""
    from tokenizers import processors

    parts = [*([f"{bos}:0"] if bos else []), "$A:0", *([f"{eos}:0"] if eos else [])]
    tokens = {token: tokenizer.token_to_id(token) for token in (bos, eos) if token}
    tokenizer.post_processor = processors.TemplateProcessing(single=parts, special_tokens=list(tokens.items()))
