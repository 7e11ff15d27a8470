"""The client's manual says which fields engines refuse so far: what it says is the engine's own list."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping

import pytest
from headrace.fields import GenerationFields, InstallFields
from headrace_engine.engine.config.field_checks import Field
from headrace_engine.engine.config.fields import GENERATION
from headrace_engine.engine.config.runtime_fields import RUNTIME

_BEGIN = "The engine refuses these so far, by name and with the reason NOT_SUPPORTED"


@pytest.mark.parametrize(
    ("manual", "table", "others"),
    [(GenerationFields, GENERATION, set()), (InstallFields, RUNTIME, {"rope_scaling"})],
)
def test_the_manual_names_the_fields_that_are_refused(
    manual: type, table: Mapping[str, Field], others: set[str]
) -> None:
    """`others`: fields of which some values are refused that no table of the engine's tells, as they depend on more."""
    _, begin, refused = (inspect.getdoc(manual) or "").partition(_BEGIN)
    assert begin
    named = [word for word in re.findall(r"[a-z_]+", refused.partition("nothing:")[2]) if word in table]
    assert len(named) == len(set(named))
    assert set(named) == {name for name, field in table.items() if field.honoured is not None} | others


@pytest.mark.parametrize(("manual", "table"), [(GenerationFields, GENERATION), (InstallFields, RUNTIME)])
def test_client_and_engine_know_the_same_fields(manual: type, table: Mapping[str, Field]) -> None:
    taken = {"model_name", "model_path"} if manual is InstallFields else set()
    assert set(manual.__annotations__) | taken == set(table)
