"""Formats at random: each is refused, or a text under it can be generated, up to a limit; nothing panics."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from headrace_engine.engine.formats.checker import FormatChecker
from headrace_engine.engine.formats.frames import Words
from headrace_engine.errors import InvalidArgument
from headrace_engine.guided.guide import GuideFailed
from headrace_engine.guided.vocabulary import Vocabulary
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.tokenizer import load_tokenizer
from headrace_engine.request_parts import ResponseFormat, ResponseFormatKind
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.models.guided_walks import ids_of
from support.models.tiny_models import make_tiny_llama
from support.models.tiny_tokenizer import VOCAB_SIZE

LENGTH = 30
WORDS = ("a", "b", "id", "naïve", "日")


class Pair:
    """Who checks, and who compiles in the core."""

    def __init__(self, path: str) -> None:
        bundle = load_tokenizer(open_model(path))
        self.checker = FormatChecker(Words(bundle.pieces, bundle.special_ids, VOCAB_SIZE))
        self.vocabulary = Vocabulary(bundle, VOCAB_SIZE)

    def holds(self, wanted: ResponseFormat, seed: int) -> None:
        try:
            verdict = self.checker.check(wanted)
        except InvalidArgument as error:
            reported = (error.reason, [violation.field for violation in error.violations])
            assert reported == ("BAD_RESPONSE_FORMAT", ["config.response_format"])
            return
        guide, chance = self.vocabulary.guide(verdict.grammar, (2,), verdict.size, verdict.seconds), random.Random(seed)
        assert ids_of(guide)
        for _ in range(LENGTH):
            allowed = sorted(ids_of(guide) - {2})
            if not allowed:
                return
            try:
                guide.take([chance.choice(allowed)])
            except GuideFailed as limit:  # It ends the request with RESPONSE_FORMAT_LIMIT.
                if "too many" not in str(limit).lower():
                    raise
                return


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pair = Pair(str(make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")))
    yield pair
    pair.checker.close()


def expressions() -> st.SearchStrategy[str]:
    numbers = st.sampled_from(["{2}", "{0,7}", "{3,}", "{40}", "{1,300}", "{1000}", "*", "+", "?"])
    atoms = st.sampled_from(
        ["a", "b", "[a-f]", r"\w", r"\d", ".", "[^x]", r"\s", "é", "(?i:k)", r"\b", "^", "$", "(", "["]
    )

    def wider(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        repeated = st.builds(lambda one, number: f"({one}){number}", inner, numbers)
        return repeated | st.builds("{}{}".format, inner, inner) | st.builds("({}|{})".format, inner, inner)

    return st.recursive(atoms, wider, max_leaves=8)


def values() -> st.SearchStrategy[Any]:
    plain = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.sampled_from(WORDS)
    return st.recursive(
        plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner), max_leaves=4
    )


def _with(words: tuple[str, ...], kinds: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(words), kinds, max_size=2)


def schemas() -> st.SearchStrategy[Any]:
    kinds = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object", "strng"])
    leaves = st.one_of(
        st.booleans(),
        st.just({"$ref": "#"}),
        st.builds(lambda kind: {"type": kind}, kinds),
        st.builds(lambda value: {"const": value}, values()),
        st.builds(lambda some: {"enum": some}, st.lists(values(), max_size=3)),
        st.builds(lambda text: {"type": "string", "pattern": text}, expressions()),
        st.builds(
            lambda name: {"type": "string", "format": name}, st.sampled_from(["date", "email", "path", "", "uri"])
        ),
        _with(("minLength", "maxLength", "minItems", "maxItems"), st.integers(-1, 70_000)),
        _with(("minimum", "exclusiveMaximum", "multipleOf"), st.integers(-50, 50) | st.floats()),
    )

    def wider(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        named = st.dictionaries(st.sampled_from(WORDS), inner, max_size=3)
        several = st.lists(inner, max_size=3)
        required = st.lists(st.sampled_from(WORDS), max_size=2)
        return st.one_of(
            st.builds(lambda of, names: {"type": "object", "properties": of, "required": names}, named, required),
            st.builds(lambda of, least: {"type": "array", "items": of, "minItems": least}, inner, st.integers(0, 3)),
            st.builds(
                lambda word, of: {word: of}, st.sampled_from(["anyOf", "oneOf", "allOf", "prefixItems"]), several
            ),
            st.builds(
                lambda word, of: {word: of}, st.sampled_from(["not", "if", "contains", "items", "propertyNames"]), inner
            ),
            st.builds(
                lambda word, of: {word: of}, st.sampled_from(["patternProperties", "$defs", "dependencies"]), named
            ),
        )

    return st.recursive(leaves, wider, max_leaves=8)


def rules() -> st.SearchStrategy[str]:
    names = st.sampled_from(["start", "a", "b", "C", "D"])
    parts = st.one_of(
        names,
        st.sampled_from(['"x"', '"yes"', "/[a-z]+/", '""', "/a*/", "<|im_start|>", "<[3]>", "(", "~", "&", "%json {}"]),
        st.builds("/{}/".format, expressions()),
    )
    right = st.lists(st.lists(parts, max_size=4).map(" ".join), min_size=1, max_size=3).map(" | ".join)
    body = st.lists(st.builds("{}: {}".format, names, right), max_size=4).map("\n".join)
    return st.builds("start: {}\n{}".format, right, body)


QUICKLY = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
SEEDS = st.integers(0, 1 << 30)


@QUICKLY
@example(text=r"a((\w){1,300}){40}", seed=0)
@given(text=expressions(), seed=SEEDS)
def test_f11_expressions_work_or_are_refused(pair: Pair, text: str, seed: int) -> None:
    pair.holds(ResponseFormat(ResponseFormatKind.REGEX, text), seed)


@QUICKLY
@given(schema=schemas(), seed=SEEDS)
def test_f11_schemas_work_or_are_refused(pair: Pair, schema: Any, seed: int) -> None:
    pair.holds(ResponseFormat(ResponseFormatKind.JSON_SCHEMA, json.dumps(schema)), seed)


@QUICKLY
@given(text=rules(), seed=SEEDS, ebnf=st.booleans())
def test_f11_grammars_work_or_are_refused(pair: Pair, text: str, seed: int, ebnf: bool) -> None:
    text = text.replace("start:", "root ::=").replace(": ", " ::= ") if ebnf else text
    pair.holds(ResponseFormat(ResponseFormatKind.GRAMMAR, text, ebnf=ebnf), seed)
