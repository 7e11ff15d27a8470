"""The grammar of a whole answer: a thought, text and calls, as they are wanted."""

from __future__ import annotations

from collections.abc import Mapping

from headrace_proto.pure.answers.formats import CALLS, THOUGHTS, CallFormat, Layout
from headrace_proto.pure.answers.harmony import FINAL
from headrace_proto.pure.answers.json_calls import JsonCalls
from headrace_proto.pure.answers.literal_calls import LiteralCalls

from headrace_engine.guided.calls.bodies import arguments, calls_after_mark
from headrace_engine.guided.calls.lark import Rules
from headrace_engine.guided.calls.names import check_name
from headrace_engine.guided.calls.wanted import Function, WantedCalls
from headrace_engine.guided.refusal import refused

_BETWEEN = r"[ \n]{0,2}"


def grammar_of_calls(wanted: WantedCalls, specials: Mapping[str, int]) -> tuple[str, list[str]]:
    """Return the grammar of an answer, and warnings.

    Args:
        wanted: what it must be.
        specials: the ids of special tokens, by their text.

    Raises:
        InvalidArgument: BAD_RESPONSE_FORMAT.
    """
    rules, functions, form = Rules(specials), wanted.functions(), CALLS[wanted.calls]
    _check(form, wanted)
    for one in functions:
        check_name(wanted.calls, one)
    if form.layout is None:
        start = _harmony(rules, wanted, functions)
    elif wanted.schema is not None:
        calls = _calls(rules, form, form.layout, functions, wanted)
        # Both may come after white space, which so decides for neither.
        start = f"{rules.pattern(_BETWEEN)} ({calls} | {rules.schema(wanted.schema)})"
    else:
        answer = _required if wanted.required else _optional
        start = f"{_thought(rules, wanted)} {answer(rules, form, form.layout, functions, wanted)}"
    return rules.text(start), rules.warnings


def _check(form: CallFormat, wanted: WantedCalls) -> None:
    if form.layout is None and wanted.calls != "harmony":
        why = "have no grammar"
    elif wanted.schema is not None and isinstance(form.layout, JsonCalls) and not form.layout.open:
        why = "begin as JSON does, and could not be told from it"
    else:
        return
    beside = " beside response_format" if wanted.schema is not None else ""
    raise refused(f"cannot be enforced{beside}: calls in the format {wanted.calls} {why}")


def _thought(rules: Rules, wanted: WantedCalls) -> str:
    """Return the thought that an answer may begin with."""
    if not wanted.thoughts:
        return ""
    style = THOUGHTS[wanted.thoughts]
    end = f"{rules.upto(style.close)} {rules.pattern(_BETWEEN)}"
    return end if wanted.opened else f"({rules.literal(style.open)} {end})?"


def _required(rules: Rules, form: CallFormat, layout: Layout, functions: list[Function], wanted: WantedCalls) -> str:
    return f"{rules.pattern(_BETWEEN)} {_calls(rules, form, layout, functions, wanted)}"


def _calls(rules: Rules, form: CallFormat, layout: Layout, functions: list[Function], wanted: WantedCalls) -> str:
    calls = calls_after_mark(rules, layout, functions, several=wanted.parallel)
    if not layout.open:
        return _marked(rules, form, calls)
    call = _several(rules, f"{rules.literal(layout.open)} {calls}", wanted)
    # Some models write all calls in one section, others each in one of its own.
    sections = [f"{rules.literal(begin)} {_section(rules, call, end)}" for begin, end in form.sections]
    return _several(rules, rules.rule(" | ".join(sections)), wanted) if sections else call


def _several(rules: Rules, call: str, wanted: WantedCalls) -> str:
    return f"{call} ({rules.pattern(_BETWEEN)} {call})*" if wanted.parallel else call


def _section(rules: Rules, calls: str, end: str) -> str:
    """Return what follows the mark of a section."""
    between = rules.pattern(_BETWEEN)
    return f"{between} {calls} {between} {rules.literal(end)}"


def _marked(rules: Rules, form: CallFormat, calls: str) -> str:
    """Return calls that are the whole text, also between those marks that are special tokens of the model."""
    marked = [
        f"{rules.literal(begin)} {calls} ({rules.literal(end)})?" if end else f"{rules.literal(begin)} {calls}"
        for begin, end in form.around
        if rules.is_special(begin)
    ]
    return rules.rule(" | ".join([calls, *marked]))


def _optional(rules: Rules, form: CallFormat, layout: Layout, functions: list[Function], wanted: WantedCalls) -> str:
    calls = calls_after_mark(rules, layout, functions, several=wanted.parallel)
    if not layout.open:
        begin = r"\[" if isinstance(layout, LiteralCalls) else r"\{"
        other = rules.pattern(rf"([^\s{begin}](.|\n)*)?")
        return f"({_marked(rules, form, calls)} | {other})"
    call = _several(rules, f"{rules.literal(layout.open)} {calls}", wanted)
    # Free text has no special tokens, which marks around calls and text may be.
    sections = [
        f"{rules.upto(begin)} {_section(rules, call, end)}" for begin, end in form.sections if rules.is_special(begin)
    ]
    called = " | ".join([f"{rules.upto(layout.open)} {calls}", *sections])
    dropped = [rules.upto(mark) for mark in form.dropped if rules.is_special(mark)]
    if wanted.parallel:
        return f"({' | '.join([called, *dropped])})* {rules.free()}"
    return f"{'(' + ' | '.join(dropped) + ')* ' if dropped else ''}({called} | {rules.free()})"


def _harmony(rules: Rules, wanted: WantedCalls, functions: list[Function]) -> str:
    begin = "<|channel|>analysis<|message|>"
    message = f"{rules.literal(begin)} {rules.upto('<|end|>')} {rules.literal('<|start|>assistant')}"
    calls = [
        f"{rules.literal(f'<|channel|>commentary to=functions.{one.name} <|constrain|>json<|message|>')} "
        f"{arguments(rules, one)}"
        for one in functions
    ]
    call = " | ".join(calls)
    if wanted.schema is not None:
        return f"{call} | {rules.literal(FINAL)} {rules.schema(wanted.schema)}"
    if wanted.required:
        return f"({message})* ({call})"
    said = f"{rules.literal('<|channel|>commentary<|message|>')} {rules.upto('<|end|>')}"
    said += f" {rules.literal('<|start|>assistant')}"
    final = f"{rules.literal(FINAL)} {rules.free()}"
    return f"({message} | {said})* ({call} | {final})"
