"""Objects written as parameters that stand one by one, as some models write the arguments of calls."""

from __future__ import annotations

from typing import Any

from headrace_proto.pure.answers.formats import CALLS
from headrace_proto.pure.answers.parameter_calls import ParameterCalls

from headrace_engine.guided.calls.bodies import given_parameters
from headrace_engine.guided.calls.lark import Rules
from headrace_engine.guided.calls.wanted import Function
from headrace_engine.guided.refusal import refused

_CALLS = {
    "qwen_xml": "qwen3_coder",
    "minimax_xml": "minimax_m2",
    "deepseek_xml": "deepseek_dsml",
    "glm_xml": "glm45",
}
"""The formats of calls whose parameters are written in a style."""


def parameters(rules: Rules, schema: bool | dict[str, Any], style: str) -> str:
    """Return the parameters that satisfy a schema, in its order.

    Args:
        style: how they are written, such as "qwen_xml".

    Raises:
        InvalidArgument: BAD_RESPONSE_FORMAT: the schema is not one of an object, or has what cannot be written so.
    """
    layout = CALLS[_CALLS[style]].layout
    if (
        not isinstance(schema, dict)
        or schema.get("type", "object") != "object"
        or not isinstance(layout, ParameterCalls)
    ):
        raise refused(f'structural_tag has json_schema in the style "{style}"; allowed: schemas of objects')
    return given_parameters(rules, layout, Function(f"json_schema in the style {style}", schema, strict=True))
