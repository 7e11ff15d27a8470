"""The loads: answers by a schema, edits of a text in the prompt, and free chat."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_TEXT = (
    "def mean(values):\n    total = 0\n    for value in values:\n        total += value\n"
    "    return total / len(values)\n\n\n"
    "def variance(values):\n    middle = mean(values)\n    total = 0\n    for value in values:\n"
    "        total += (value - middle) ** 2\n    return total / len(values)\n\n\n"
    "def spread(values):\n    return max(values) - min(values)\n"
)
_NAMES = ("numbers", "samples", "points", "weights", "prices", "times", "sizes", "scores")
_PEOPLE = ("Ada Lovelace", "Alan Turing", "Grace Hopper", "Emmy Noether", "Carl Gauss", "Marie Curie", "Max Planck")
_TOPICS = (
    "how bread is made",
    "why the sky is blue",
    "what a market is",
    "how to learn to swim",
    "what makes good tea",
)
_SCHEMA = {
    "type": "object",
    "properties": {
        "full_name": {"type": "string", "maxLength": 40},
        "year_of_birth": {"type": "integer"},
        "country_of_birth": {"type": "string", "maxLength": 30},
        "fields_of_work": {"type": "array", "items": {"type": "string", "maxLength": 30}, "minItems": 2, "maxItems": 3},
        "best_known_for": {"type": "string", "maxLength": 80},
        "still_alive": {"type": "boolean"},
    },
    "required": [
        *("full_name", "year_of_birth", "country_of_birth"),
        *("fields_of_work", "best_known_for", "still_alive"),
    ],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Load:
    """Requests of one kind.

    Attributes:
        request: returns the fields of request number n.
    """

    name: str
    request: Callable[[int], Mapping[str, Any]]


def _json(number: int) -> Mapping[str, Any]:
    text = f"Describe {_PEOPLE[number % len(_PEOPLE)]} as JSON by this schema, on one line:\n{json.dumps(_SCHEMA)}"
    return {**_chat(text, 0), "response_format": {"type": "json_schema", "json_schema": _SCHEMA}}


def _edit(number: int) -> Mapping[str, Any]:
    name = _NAMES[number % len(_NAMES)]
    return _chat(f"Write this program again, with `values` named `{name}`, and nothing else:\n\n{_TEXT}", 0)


def _free(number: int) -> Mapping[str, Any]:
    text = f"Explain {_TOPICS[number % len(_TOPICS)]} to a friend."
    return {**_chat(text, 0.7), "top_p": 0.9, "seed": number}


def _chat(text: str, temperature: float) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "temperature": temperature}


LOADS = (Load("JSON by a schema", _json), Load("edit of a text", _edit), Load("free chat", _free))
