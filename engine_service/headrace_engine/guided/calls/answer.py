"""The grammar of a whole answer: a thought, text and calls, as they are wanted."""

from __future__ import annotations

from collections.abc import Mapping

from headrace_proto.pure.answers.formats import CALLS, THOUGHTS, CallFormat, Layout
from headrace_proto.pure.answers.harmony import ENDS, FINAL
from headrace_proto.pure.answers.json_calls import JsonCalls
from headrace_proto.pure.answers.literal_calls import LiteralCalls

from headrace_engine.guided.calls.bodies import arguments, calls_after_mark
from headrace_engine.guided.calls.lark import Rules, literally
from headrace_engine.guided.calls.names import check_name
from headrace_engine.guided.calls.wanted import FORMAT, TOOLS, Function, WantedCalls
from headrace_engine.guided.refusal import refused

_BETWEEN = r"[ \n]{0,2}"
_SPACE = r"[\s\x1c-\x1f]*"
"""White space as machines skip it: that of Python, which has more than the library's."""


def grammar_of_calls(wanted: WantedCalls, specials: Mapping[str, int]) -> tuple[str, list[str]]:
    """Return the grammar of an answer, and warnings.

    Args:
        wanted: what it must be.
        specials: the ids of special tokens, by their text.

    Raises:
        InvalidArgument: BAD_RESPONSE_FORMAT.
    """
    rules, functions, form = Rules(specials, TOOLS), wanted.functions(), CALLS[wanted.calls]
    _check(form, wanted)
    for one in functions:
        check_name(wanted.calls, one)
    if form.layout is None:
        start = _harmony(rules, wanted, functions)
    elif wanted.schema is not None:
        calls = _calls(rules, form, form.layout, functions, wanted)
        # Both may come after white space, which so decides for neither.
        start = f"{rules.pattern(_BETWEEN)} ({calls} | {rules.schema(wanted.schema, FORMAT)})"
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
        return _marked(rules, form, calls, "", _BETWEEN)
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


def _marked(rules: Rules, form: CallFormat, calls: str, before: str, within: str) -> str:
    """Return calls that are the whole text, also between marks.

    Args:
        before: expression of the white space before them.
        within: that of the white space after a mark.
    """
    marked = [f"{rules.pattern(before)} {calls}" if before else calls]
    for begin, end in form.around:
        if rules.is_special(begin):
            opened = f"{rules.pattern(before)} " if before else ""
            opened += f"{rules.literal(begin)} {rules.pattern(within)}"
        else:  # One terminal: free text that goes on as it does would be the longer one, and win.
            opened = rules.terminal(f"/{before}{literally(begin)}{within}/")
        marked.append(f"{opened} {calls} ({rules.literal(end)})?" if end else f"{opened} {calls}")
    return rules.rule(" | ".join(marked))


def _optional(rules: Rules, form: CallFormat, layout: Layout, functions: list[Function], wanted: WantedCalls) -> str:
    calls = calls_after_mark(rules, layout, functions, several=wanted.parallel)
    if not layout.open:
        return f"({_marked(rules, form, calls, _SPACE, _SPACE)} | {_no_calls(rules, form, layout, wanted)})"
    call = _several(rules, f"{rules.literal(layout.open)} {calls}", wanted)
    around = [mark for pair in form.sections for mark in pair]
    # Free text has no special tokens, which marks may be, nor the letters of such marks, which machines would read.
    special = [mark for mark in (layout.open, *around, *form.dropped) if rules.is_special(mark)]
    sections = [
        f"{rules.upto(begin, special)} {_section(rules, call, end)}" for begin, end in form.sections if begin in special
    ]
    dropped = [rules.upto(mark, special) for mark in form.dropped if mark in special]
    called = f"{rules.upto(layout.open, special)} {calls}"
    if wanted.parallel:
        return f"({' | '.join([called, *sections, *dropped])})* {rules.free(special)}"
    ends = [rules.literal(end) for begin, end in form.sections if begin not in special]
    called += f" ({rules.pattern(_BETWEEN)} ({' | '.join(ends)}))?" if ends else ""
    before = f"({' | '.join(dropped)})* " if dropped else ""
    return f"{before}({' | '.join([called, *sections])} | {rules.free(special)})"


def _no_calls(rules: Rules, form: CallFormat, layout: Layout, wanted: WantedCalls) -> str:
    """Return any text that does not begin as calls do which are the whole text, nor with a thought before them."""
    begin = r"\[" if isinstance(layout, LiteralCalls) else r"\{"
    marks = "|".join(literally(mark) for mark, _ in form.around)
    begins = [f"(({marks}){_SPACE})?{begin}"]
    if wanted.thoughts and not wanted.opened:
        begins.append(literally(THOUGHTS[wanted.thoughts].open.rstrip()))
    return rules.terminal(rf"/(.|\n)*/ & ~(/{_SPACE}({'|'.join(begins)})(.|\n)*/)")


def _harmony(rules: Rules, wanted: WantedCalls, functions: list[Function]) -> str:
    begin = "<|channel|>analysis<|message|>"
    message = f"{rules.literal(begin)} {rules.upto('<|end|>', ENDS)} {rules.literal('<|start|>assistant')}"
    calls = [
        f"{rules.literal(f'<|channel|>commentary to=functions.{one.name} <|constrain|>json<|message|>')} "
        f"{arguments(rules, one)}"
        for one in functions
    ]
    call = " | ".join(calls)
    if wanted.schema is not None:
        return f"{call} | {rules.literal(FINAL)} {rules.schema(wanted.schema, FORMAT)}"
    if wanted.required:
        return f"({message})* ({call})"
    said = f"{rules.literal('<|channel|>commentary<|message|>')} {rules.upto('<|end|>', ENDS)}"
    said += f" {rules.literal('<|start|>assistant')}"
    final = f"{rules.literal(FINAL)} {rules.free(ENDS)}"
    return f"({message} | {said})* ({call} | {final})"
