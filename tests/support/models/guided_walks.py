"""Texts sampled at random among those that a guide allows."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

import pytest
from headrace_engine.errors import InvalidArgument
from headrace_engine.guided.check import check
from headrace_engine.guided.grammar import grammar_of
from headrace_engine.guided.guide import Guide
from headrace_engine.guided.vocabulary import Vocabulary
from headrace_engine.models.tokenizer import TokenizerBundle
from headrace_engine.request_parts import ResponseFormat, ResponseFormatKind

IM_END = 2
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"enum": ["a", "b"]},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["name", "children"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}


@dataclass(frozen=True)
class Walk:
    """A sampled text, and whether an EOS id ended it."""

    text: bytes
    complete: bool


class Walker:
    """Samples with one tokenizer."""

    def __init__(self, bundle: TokenizerBundle, size: int, eos_ids: tuple[int, ...]) -> None:
        self.bundle, self.eos_ids = bundle, eos_ids
        self.vocabulary = Vocabulary(bundle, size)

    def guide(self, wanted: ResponseFormat) -> Guide:
        assert check(self.vocabulary, wanted).warnings == ()
        return self.vocabulary.guide(grammar_of(wanted), self.eos_ids)

    def why_not(self, wanted: ResponseFormat) -> str:
        """Return why a format is refused; "" if it is not."""
        try:
            check(self.vocabulary, wanted)
        except InvalidArgument as error:
            return error.message
        return ""

    def accepts(self, wanted: ResponseFormat, text: str) -> bool:
        """True if a guide allows a text, id by id, and its end."""
        guide = self.guide(wanted)
        for token_id in self.bundle.encode_plain(text):
            if token_id not in ids_of(guide):
                return False
            guide.take([token_id])
        return not set(self.eos_ids).isdisjoint(ids_of(guide))

    def draw(self, wanted: ResponseFormat, seed: int, most: int = 300) -> Walk:
        """Sample a text of random ids, preferring short ones."""
        guide, chance = self.guide(wanted), random.Random(seed)
        text = b""
        for _ in range(most):
            allowed = ids_of(guide)
            if not set(self.eos_ids).isdisjoint(allowed) and chance.random() < 0.5:
                return Walk(text, complete=True)
            others = sorted(allowed.difference(self.eos_ids))
            if not others:
                return Walk(text, complete=bool(allowed))
            token_id = chance.choice(others)
            text += self.bundle.token_bytes(token_id)
            guide.take([token_id])
        return Walk(text, complete=False)


def ids_of(guide: Guide) -> set[int]:
    """Return the ids that a guide allows next."""
    return {32 * word + bit for word, bits in enumerate(guide.allowed) for bit in range(32) if bits >> bit & 1}


def schema_format(schema: Any) -> ResponseFormat:
    """Return the format of a schema."""
    return ResponseFormat(ResponseFormatKind.JSON_SCHEMA, json.dumps(schema))


def refusal(walker: Walker, wanted: ResponseFormat) -> str:
    """Return why a format is refused."""
    with pytest.raises(InvalidArgument) as caught:
        check(walker.vocabulary, wanted)
    assert caught.value.reason == "BAD_RESPONSE_FORMAT"
    assert [violation.field for violation in caught.value.violations] == ["config.response_format"]
    return caught.value.message
