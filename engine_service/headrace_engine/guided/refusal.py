"""Explains why a format is refused, and what to change."""

from __future__ import annotations

import json
import re

from headrace_engine.errors import InvalidArgument, sendable

FIELD = "config.response_format"

_LONGEST = 300

_SMALLER = "use smaller numbers of repetitions, or fewer and shorter alternatives"

_ONE_WAY = (
    "write its rules so that a text can be read in one way, with repetition (x*) instead of rules that refer to "
    "themselves twice"
)

_EXPLANATIONS = (
    (
        r"oneOf constraints are not supported.*",
        "oneOf is supported only where its alternatives cannot overlap, such as those with different constants in one "
        "required property; use anyOf where an overlap does no harm",
    ),
    (r".*too many expressions constructed.*|.*fuel exhausted.*", f"it takes too much to match: {_SMALLER}"),
    (r".*too many states.*|lexer precomputation failed.*", f"it takes too much to match: {_SMALLER}"),
    (r".*(initial lexer configuration|grammar size).* too big.*", f"it is too large: {_SMALLER}"),
    (r".*schema too large.*", f"it is too large: {_SMALLER}"),
    (
        r".*(Too many items|Current row has).*",
        f"it is too ambiguous, or has too many alternatives or repetitions at one place: {_SMALLER}; {_ONE_WAY}",
    ),
    (r".*takes too long to match.*", f"it takes too long to match: {_SMALLER}, and {_ONE_WAY}"),
    (r"Unable to determine if regex is empty.*", f"patterns that apply together take too much to match: {_SMALLER}"),
    (r"Resource '(.{0,200}?)' .*", r"the $ref to \1 points outside the schema: move its target into $defs"),
    (r".*[Rr]ecursion limit exceeded.*", "it is nested too deep: use $defs and $ref to keep it flat"),
    (r".*a defect of the parser.*", "the parser cannot read it"),
)
"""Patterns of the library's messages, and the explanation to give instead."""

_ADVICE = {
    "not": "not: list what is allowed, with enum, anyOf or pattern",
    "if": "if/then/else: write the cases as alternatives of anyOf",
    "then": "",
    "else": "",
    "uniqueItems": "uniqueItems: leave it out, and check the items yourself",
    "dependencies": "dependencies: write the cases as alternatives of anyOf",
    "dependentRequired": "dependentRequired: write the cases as alternatives of anyOf",
    "dependentSchemas": "dependentSchemas: write the cases as alternatives of anyOf",
    "propertyNames": "propertyNames: use patternProperties with additionalProperties false",
    "contains": "contains: say what every item is, with items or prefixItems",
    "minContains": "",
    "maxContains": "",
    "unevaluatedProperties": "unevaluatedProperties: use additionalProperties",
    "unevaluatedItems": "unevaluatedItems: use items beside prefixItems",
    "$dynamicRef": "$dynamicRef: use $ref",
    "$recursiveRef": "$recursiveRef: use $ref",
}


def refused(why: str) -> InvalidArgument:
    """Return the error that refuses a format."""
    return InvalidArgument.field(FIELD, sendable(why), reason="BAD_RESPONSE_FORMAT")


def explain(message: str) -> str:
    """Rephrase a message of the library as advice on what to change."""
    text = first_line(message.replace("<non-verbose/>", ""))
    within = re.match(r"at \d+\(\d+\): failed to compile JSON schema: (.*?)(?: \d+ \| .*)?$", text, re.DOTALL)
    if within is not None:  # A schema within a grammar.
        text = within.group(1)
    keys = re.match(r"Unimplemented keys: (\[.*?\])", text)
    if keys is not None:
        return _of_keys(keys.group(1))
    for pattern, words in _EXPLANATIONS:
        found = re.fullmatch(pattern, text, re.DOTALL)
        if found is not None:
            return found.expand(words)
    return text


def first_line(message: str) -> str:
    """Return a multi-line message on one line, shortened."""
    lines = [line.strip() for line in message.splitlines() if line.strip(" ^|")]
    return " ".join(lines)[:_LONGEST]


def _of_keys(listed: str) -> str:
    try:
        keys = json.loads(listed)
    except ValueError:
        keys = [listed]
    advice = [found for key in keys if (found := _ADVICE.get(key, f"{key}: leave it out"))]
    return "these keywords of JSON Schema are not supported: " + "; ".join(advice or keys)
