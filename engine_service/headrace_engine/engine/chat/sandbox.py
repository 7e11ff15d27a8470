"""Jinja environment of chat templates: the features of transformers, without access to Python's own objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


def sandbox() -> ImmutableSandboxedEnvironment:
    """Return an environment for compiling one template."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text for training; here its contents are rendered as they are."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Dict:
    """The `dict` of templates: creates dictionaries, without the other attributes of the type."""

    def __call__(self, *pairs: Any, **items: Any) -> dict[Any, Any]:
        return dict(*pairs, **items)

    def fromkeys(self, keys: Any, value: Any = None) -> dict[Any, Any]:
        """Like dict.fromkeys."""
        return dict.fromkeys(keys, value)


class _Namespace(Namespace):
    """Jinja's namespace without names that begin with an underscore: some have a meaning in Python."""

    def __init__(*args: Any, **attributes: Any) -> None:  # `self` may be one of the attributes.
        self, *pairs = args
        Namespace.__init__(self, _named(dict(*pairs, **attributes)))

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(*_named({name: value}).popitem())


def _named(attributes: Mapping[Any, Any]) -> dict[Any, Any]:
    wrong = [name for name in attributes if isinstance(name, str) and name.startswith("_")]
    if wrong:
        raise jinja2.exceptions.SecurityError(f"a namespace has no {wrong[0]!r}: names must not begin with '_'")
    return dict(attributes)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which would change what the model reads.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
