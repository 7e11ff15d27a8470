"""Which modules a pattern of compressed-tensors names: a class of modules, a module, or `re:` and an expression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import regex

from headrace_engine.errors import shown
from headrace_engine.models.config_fields import ConfigFields
from headrace_engine.models.families import ARCHITECTURES

_EMBEDDINGS = {family.hf.names["embed"].split(".")[-2] for family in ARCHITECTURES.values()}
"""Last parts of the names of embeddings: a class of modules is not in the files."""

_ROUTERS = {family.hf.names["router"].split(".")[-2] for family in ARCHITECTURES.values()}
"""Last parts of the names of routers, which are of the class Linear in some versions of a program, not in others."""

_LONGEST = 256
"""Maximum length of a pattern, in characters: more than any name of a tensor needs."""

_MOST_EXPRESSIONS = 64
"""Maximum number of expressions in a list: each is compared with the name of every module."""

_BY_CLASS = 2
"""Rank of a module whose class is named."""

_SECONDS = 1.0
"""Maximum processor time for one comparison: some expressions would take years."""


class Patterns:
    """A list of patterns in a config.

    Args:
        fields: the object that holds the list.
        name: the list's name.

    Raises:
        BadModel: it is no list of strings, or has too many or too long patterns, or no valid ones.
    """

    def __init__(self, fields: ConfigFields, name: str) -> None:
        listed = [] if fields.get(name) is None else fields.get(name)
        if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
            raise fields.error(name, "must be a list of strings")
        self._fields, self._name = fields, name
        self._names = {each for each in listed if not each.startswith("re:")}
        self._expressions = self._compiled([each[3:] for each in listed if each.startswith("re:")])

    def rank(self, module: str) -> int | None:
        """Return 0 if a module is named, 1 if an expression matches, 2 if its class is named; None: none of these.

        Raises:
            BadModel: an expression takes too long.
        """
        if module in self._names:
            return 0
        if any(self._matches(expression, module) for expression in self._expressions):
            return 1
        kind = "Embedding" if module.rpartition(".")[2] in _EMBEDDINGS else "Linear"
        return _BY_CLASS if kind in self._names else None

    def surely_has(self, module: str) -> bool:
        """True if the list names a module, whatever version of a program wrote the file.

        Raises:
            BadModel: an expression takes too long.
        """
        rank = self.rank(module)
        return rank is not None and (rank < _BY_CLASS or module.rpartition(".")[2] not in _ROUTERS)

    def _compiled(self, expressions: Sequence[str]) -> list[Any]:
        if len(expressions) > _MOST_EXPRESSIONS or any(len(each) > _LONGEST for each in expressions):
            text = f"has too many or too long expressions; allowed: {_MOST_EXPRESSIONS} of {_LONGEST} characters"
            raise self._fields.error(self._name, text)
        try:
            return [regex.compile(each) for each in expressions]
        except (regex.error, OverflowError, RecursionError) as error:
            raise self._fields.error(self._name, f"holds an expression that is not valid: {error}") from error

    def _matches(self, expression: Any, module: str) -> bool:
        try:
            return expression.match(module, timeout=_SECONDS) is not None
        except TimeoutError:
            text = f"holds {shown(expression.pattern)}, which takes more than {_SECONDS:g} s for {shown(module)}"
            raise self._fields.error(self._name, text) from None
