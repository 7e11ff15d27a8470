"""Which names and keys can stand in calls: those that machines read back."""

from __future__ import annotations

import json

from headrace_proto.pure.answers.formats import CALLS, Layout, machine_of
from headrace_proto.pure.answers.json_calls import JsonCalls
from headrace_proto.pure.answers.json_text import MAX_NAME
from headrace_proto.pure.answers.literal_calls import LiteralCalls, is_key
from headrace_proto.pure.answers.named_calls import EitherCalls, NamedCalls
from headrace_proto.pure.answers.parameter_calls import ParameterCalls
from headrace_proto.pure.answers.pieces import CallBegin

from headrace_engine.guided.calls.wanted import Function
from headrace_engine.guided.refusal import refused


def check_name(calls: str, function: Function) -> None:
    """Refuse a function whose calls would be read as text, or as those of another one.

    Args:
        calls: format of calls.

    Raises:
        InvalidArgument: BAD_RESPONSE_FORMAT.
    """
    for text in _calls_of(CALLS[calls].layout, function.name):
        machine = machine_of(calls, "", False, ())
        found = [*machine.feed(text), *machine.end()]
        if [one.name for one in found if isinstance(one, CallBegin)] != [function.name]:
            what = f"no function can be called in the format {calls}, in which this model writes calls"
            raise refused(f'cannot be enforced: "{function.name[:64]}" is a name by which {what}')


def check_key(layout: ParameterCalls | LiteralCalls, function: Function, key: str, *, quoted: bool = False) -> None:
    """Refuse a parameter whose name would be read as another one.

    Args:
        quoted: it is written between quotation marks.

    Raises:
        InvalidArgument: BAD_RESPONSE_FORMAT.
    """
    if isinstance(layout, ParameterCalls):
        reads = layout.key_close not in key
    else:
        reads = json.dumps(key, ensure_ascii=False)[1:-1] == key if quoted else is_key(key)
    if not reads or len(key) > MAX_NAME:
        text = f'"{key[:64]}" is no name of a parameter in the format in which this model writes calls'
        raise refused(f"of {function.name} cannot be strict: {text}")


def _calls_of(layout: Layout | None, name: str) -> list[str]:
    """Return a call without arguments, in each way of a layout; of none: that of harmony."""
    if layout is None:
        return [f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{{}}"]
    if isinstance(layout, EitherCalls):
        return [*_calls_of(layout.json, name), *_calls_of(layout.named, name)]
    if isinstance(layout, JsonCalls):
        call = json.dumps({layout.name: name, layout.arguments: {}} if layout.name else {name: {}}, ensure_ascii=False)
        return [f"{layout.open}[{call}]{layout.close}" if layout.listed else f"{layout.open}{call}{layout.close}"]
    if isinstance(layout, NamedCalls):
        head = f"functions.{name}:0" if layout.numbered else name
        return [f"{layout.open}{head}{layout.middle}{{}}{layout.close}"]
    if isinstance(layout, ParameterCalls):
        return [f"{layout.open}{name}{layout.name_end}{layout.close}"]
    call = f"{name}{layout.brackets}"
    return [f"{layout.open}[{call}]{layout.close}" if layout.listed else f"{layout.open}{call}{layout.close}"]
