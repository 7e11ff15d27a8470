"""What the builders of tokenizers give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BuiltTokenizer:
    """A tokenizers.Tokenizer, and what else a model's files say of it.

    Attributes:
        named: text of its special tokens by the name that chat templates use.
        unused: ids that only fill the vocabulary up.
        warnings: sentences about what looks like a mistake.
    """

    tokenizer: Any
    named: Mapping[str, str]
    unused: frozenset[int] = frozenset()
    warnings: tuple[str, ...] = ()


def set_ends(tokenizer: Any, bos: str | None, eos: str | None) -> None:
    """Makes a tokenizer put these tokens around a text when it adds special tokens; None: not."""
    from tokenizers import processors

    parts = [*([f"{bos}:0"] if bos else []), "$A:0", *([f"{eos}:0"] if eos else [])]
    tokens = {token: tokenizer.token_to_id(token) for token in (bos, eos) if token}
    tokenizer.post_processor = processors.TemplateProcessing(single=parts, special_tokens=list(tokens.items()))
