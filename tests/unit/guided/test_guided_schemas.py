"""Warnings and refusals of schemas: unchecked formats, useful advice, and unsatisfiable schemas."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pydantic
import pytest
from headrace_engine.errors import InvalidArgument
from headrace_engine.guided.check import Checked, check
from headrace_engine.guided.schema import FORMATS, MAX_DEPTH
from headrace_engine.request_parts import ResponseFormat, ResponseFormatKind
from support.models.guided_walks import Walker, refusal, schema_format

LINKED = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}


def checked(walker: Walker, schema: Any) -> Checked:
    return check(walker.vocabulary, schema_format(schema))


def text(text: str) -> ResponseFormat:
    return ResponseFormat(ResponseFormatKind.JSON_SCHEMA, text)


class TestFormats:
    @pytest.mark.parametrize(
        "name",
        ["path", "binary", "byte", "password", "uuid4", "regex", "uri-reference", "iri", "json-pointer", "file-path"],
    )
    def test_n04_an_unknown_format_is_an_annotation_with_a_warning(self, walker: Walker, name: str) -> None:
        found = checked(walker, {"type": "object", "properties": {"f": {"type": "string", "format": name}}})
        (warning,) = found.warnings
        assert f"format {name} is not checked" in warning

    @pytest.mark.parametrize(("kind", "name"), [("integer", "int32"), ("number", "double")])
    def test_n04_those_of_numbers_go_by_the_same_rule(self, walker: Walker, kind: str, name: str) -> None:
        (warning,) = checked(walker, {"type": kind, "format": name}).warnings
        assert f"format {name} is not checked" in warning

    def test_n04_each_is_named_once(self, walker: Walker) -> None:
        parts = [{"type": "string", "format": name} for name in ("path", "byte", "path")]
        found = checked(walker, {"anyOf": parts})
        assert [warning.split()[2] for warning in found.warnings] == ["path", "byte"]

    def test_n04_the_list_has_an_end(self, walker: Walker) -> None:
        found = checked(walker, {"anyOf": [{"type": "string", "format": f"own-{number}"} for number in range(50)]})
        assert len(found.warnings) == 21
        assert "30 more formats" in found.warnings[-1]

    @pytest.mark.parametrize("name", sorted(FORMATS - {"unknown"}))
    def test_n04_known_formats_hold_texts_to_them(self, walker: Walker, name: str) -> None:
        schema = {"type": "string", "format": name}
        assert checked(walker, schema).warnings == ()
        assert not walker.accepts(schema_format(schema), '"not one!"')

    def test_n04_names_and_data_are_no_formats(self, walker: Walker) -> None:
        schema = {
            "type": "object",
            "properties": {"format": {"type": "string", "enum": ["path"]}, "a": {"const": {"format": "path"}}},
            "default": {"format": "path"},
            "examples": [{"format": "path"}],
            "required": ["format", "a"],
            "additionalProperties": False,
        }
        assert checked(walker, schema).warnings == ()
        assert walker.accepts(schema_format(schema), '{"format": "path", "a": {"format": "path"}}')

    @pytest.mark.parametrize(
        "schema",
        [
            {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "string", "format": "path"}}},
            {"$ref": "#/components/x", "type": "string", "components": {"x": {"type": "string", "format": "path"}}},
            {"type": "array", "prefixItems": [{"type": "string", "format": "path"}], "items": False},
            {"type": "object", "additionalProperties": {"type": "string", "format": "path"}},
            {"allOf": [{"type": "string", "format": "path"}]},
        ],
    )
    def test_n04_schemas_are_found_where_they_are(self, walker: Walker, schema: Any) -> None:
        (warning,) = checked(walker, schema).warnings
        assert "format path is not checked" in warning

    def test_n04_what_pydantic_writes_is_accepted(self, walker: Walker) -> None:
        class Everything(pydantic.BaseModel):
            path: pydantic.FilePath
            folder: pydantic.DirectoryPath
            data: bytes
            secret: pydantic.SecretStr
            network: pydantic.IPvAnyNetwork
            number: pydantic.UUID4
            code: pydantic.Base64Str
            link: pydantic.AnyUrl

        found = checked(walker, Everything.model_json_schema())
        assert found.grammar
        assert any("file-path" in warning for warning in found.warnings)


class TestWords:
    @pytest.mark.parametrize(
        ("schema", "advice"),
        [
            (
                {"oneOf": [{"properties": {"a": {}}, "type": "object"}, {"type": "object"}]},
                "use anyOf where an overlap",
            ),
            ({"not": {"type": "string"}}, "not: list what is allowed"),
            ({"if": {"type": "string"}, "then": {"minLength": 1}}, "if/then/else: write the cases as alternatives"),
            ({"type": "array", "uniqueItems": True}, "uniqueItems: leave it out"),
            ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired: write the cases"),
            ({"type": "object", "propertyNames": {"pattern": "^a$"}}, "propertyNames: use patternProperties"),
            ({"type": "array", "contains": {"const": 1}}, "contains: say what every item is"),
            ({"$ref": "https://example.com/a.json"}, "move its target into $defs"),
            ({"x-guidance": {"lenient": True}}, "x-guidance (at #), which has no effect here: leave it out"),
            ({"properties": {"a": {"x-guidance": {}}}}, "x-guidance (at #/properties/a)"),
            ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ],
    )
    def test_n06_advice_can_be_followed(self, walker: Walker, schema: Any, advice: str) -> None:
        message = refusal(walker, schema_format(schema))
        assert advice in message
        assert not any(word in message for word in ("coerce", "option", "non-verbose", "Unimplemented", "lenient"))

    def test_n06_oneof_that_can_be_told_apart_works(self, walker: Walker) -> None:
        cases = [{"type": "object", "properties": {"kind": {"const": name}}, "required": ["kind"]} for name in "ab"]
        assert not walker.why_not(schema_format({"oneOf": cases}))


class TestNesting:
    @pytest.mark.parametrize("depth", [125, 200, 5000, 6000])
    def test_f11_a_schema_that_is_nested_too_deep_is_refused(self, walker: Walker, depth: int) -> None:
        message = refusal(walker, text('{"items":' * depth + "{}" + "}" * depth))
        assert "nested" in message or "recursion" in message

    def test_f11_as_deep_as_allowed(self, walker: Walker) -> None:
        level = '{"type":"array","items":'
        assert not walker.why_not(text(level * (MAX_DEPTH - 1) + "{}" + "}" * (MAX_DEPTH - 1)))
        assert f"at most {MAX_DEPTH}" in refusal(walker, text(level * MAX_DEPTH + "{}" + "}" * MAX_DEPTH))

    @pytest.mark.parametrize(
        "schema",
        [
            '{"const": "\\ud800"}',
            '{"type": "string", "pattern": "\\udfff"}',
            '{"type": "number", "minimum": %s}' % ("9" * 5000),
            '{"type": "number", "minimum": 1e400}',
            '{"const": NaN}',
            '{"type": "integer", "multipleOf": 0}',
            '{"type": ["string", 5]}',
            '{"properties": []}',
            '{"required": "a"}',
            '{"$ref": 5}',
            '{"$ref": "#/$defs/absent"}',
            '{"format": 5, "type": "string"}',
            '{"minItems": 1e30, "type": "array"}',
            '{"anyOf": {}}',
            '{"enum": "abc"}',
        ],
        ids=range(15),
    )
    def test_f11_nonsense_is_a_refusal_or_works(self, walker: Walker, schema: str) -> None:
        with suppress(InvalidArgument):
            check(walker.vocabulary, text(schema))

    def test_f11_half_a_surrogate_pair_is_no_text(self, walker: Walker) -> None:
        assert "surrogate" in refusal(walker, ResponseFormat(ResponseFormatKind.REGEX, "\ud800"))
        assert "surrogate" in refusal(walker, ResponseFormat(ResponseFormatKind.CHOICE, choices=("a", "\udc00")))


class TestNothingFits:
    @pytest.mark.parametrize(
        ("schema", "at"),
        [
            ({"$defs": {"node": LINKED}, "$ref": "#/$defs/node"}, "#/$defs/node"),
            ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "#"),
            ({"type": "object", "required": ["a"], "additionalProperties": False}, "#"),
            ({"type": "array", "items": False, "minItems": 1}, "#"),
            ({"type": "array", "prefixItems": [True, False], "minItems": 2}, "#"),
            ({"enum": []}, "#"),
            ({"anyOf": [False, {"enum": []}]}, "#/anyOf/1"),
            ({"allOf": [{"type": "string"}, {"enum": []}]}, "#/allOf/1"),
            ({"type": "object", "properties": {"me": {"$ref": "#"}}, "required": ["me"]}, "#/properties/me"),
        ],
    )
    def test_b8_a_schema_that_nothing_fits_is_refused(self, walker: Walker, schema: Any, at: str) -> None:
        assert f"allows nothing: nothing matches {at}:" in refusal(walker, schema_format(schema))

    @pytest.mark.parametrize(
        "schema",
        [
            {"$defs": {"node": LINKED}, "type": "object", "properties": {"a": {"$ref": "#/$defs/node"}}},
            {"$defs": {"node": LINKED}, "type": "array", "items": {"$ref": "#/$defs/node"}},
        ],
    )
    def test_b8_a_part_that_nothing_fits_is_a_warning(self, walker: Walker, schema: Any) -> None:
        (warning,) = checked(walker, schema).warnings
        assert "nothing matches #/" in warning
        assert "never ends" in warning

    @pytest.mark.parametrize(
        "schema",
        [
            {"type": "object", "properties": {"me": {"$ref": "#"}}},
            {"type": "object", "properties": {"me": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["me"]},
            {"type": "object", "properties": {"all": {"type": "array", "items": {"$ref": "#"}}}, "required": ["all"]},
            {"properties": {"a": False}, "required": ["a"]},
            {"type": "array", "items": False},
            {"type": "object", "patternProperties": {"^a": {}}, "additionalProperties": False, "required": ["a"]},
        ],
    )
    def test_b8_what_something_fits_is_not_refused_as_empty(self, walker: Walker, schema: Any) -> None:
        why = walker.why_not(schema_format(schema))
        assert "allows nothing" not in why

    def test_b8_chains_of_references_are_followed_both_ways(self, walker: Walker) -> None:
        for order in (range(300), range(299, -1, -1)):
            chain = {f"d{place}": {"$ref": f"#/$defs/d{place + 1}"} for place in order}
            schema = {"$ref": "#/$defs/d0", "$defs": chain | {"d300": {"type": "boolean"}}}
            assert not walker.why_not(schema_format(schema)), json.dumps(schema)[:80]
