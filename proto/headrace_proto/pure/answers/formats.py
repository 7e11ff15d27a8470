"""The ways of writing calls and thoughts, by name, and what reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace_proto.pure.answers import functionary, harmony
from headrace_proto.pure.answers.json_calls import JsonCalls
from headrace_proto.pure.answers.literal_calls import LiteralCalls
from headrace_proto.pure.answers.machines import (
    Run,
    TextMachine,
    ThoughtStyle,
    after_thoughts,
    all_text,
    among_text,
    calls_or_text,
    whole_text,
    with_thoughts,
)
from headrace_proto.pure.answers.named_calls import EitherCalls, NamedCalls
from headrace_proto.pure.answers.parameter_calls import ParameterCalls
from headrace_proto.pure.answers.parameter_types import types_of
from headrace_proto.pure.answers.pieces import Machine

Layout = JsonCalls | NamedCalls | EitherCalls | ParameterCalls | LiteralCalls


@dataclass(frozen=True)
class CallFormat:
    """A way of writing calls.

    Attributes:
        layout: how one is written; None: `run` reads all of it.
        sections: marks before and after all calls.
        dropped: marks around text, left out.
        around: for calls that are the whole text, marks that may stand before and after them; "": none after them.
        run: reads answers that have no layout.
        run_or_json: reads those of them that are calls or JSON; None: nothing holds answers to that.
        marks: marks of answers that have no layout.
    """

    layout: Layout | None = None
    sections: tuple[tuple[str, str], ...] = ()
    dropped: tuple[str, ...] = ()
    around: tuple[tuple[str, str], ...] = ()
    run: Run | None = None
    run_or_json: Run | None = None
    marks: tuple[str, ...] = ()

    @property
    def all_marks(self) -> tuple[str, ...]:
        """All marks: where they are special tokens, text that is to be parted must have them."""
        own = self.marks if self.layout is None else self.layout.marks
        pairs = (*self.around, *self.sections)
        return (*own, *self.dropped, *(mark for pair in pairs for mark in pair if mark))

    def reads(self, tools: Sequence[Any], *, or_json: bool) -> Run:
        """Return what reads an answer.

        Args:
            tools: as the request gives them.
            or_json: it is calls alone, or else JSON alone.
        """
        if self.layout is None:
            return (or_json and self.run_or_json) or self.run or all_text
        layout = self.layout
        call = partial(layout.read, types=types_of(tools)) if isinstance(layout, ParameterCalls) else layout.read
        if not layout.open:
            return whole_text("[" if isinstance(layout, LiteralCalls) else "{", self.around, call)
        close = "" if isinstance(layout, ParameterCalls) else layout.close
        among = among_text(layout.open, close, self.sections, self.dropped, call)
        return calls_or_text((layout.open, *(begin for begin, _ in self.sections)), among) if or_json else among


def _listed(begin: str, close: str, *dropped: str, **more: str) -> CallFormat:
    return CallFormat(JsonCalls(begin, close, listed=True, **more), dropped=dropped)


def _functions(begin: str, close: str, *, line_breaks: bool) -> CallFormat:
    layout = ParameterCalls(
        "<function=", ">", "<parameter=", ">", (), "</parameter>", "</function>", line_breaks=line_breaks
    )
    return CallFormat(layout, ((begin, close),))


_DEEPSEEK = (("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),)
_PYTHON = ("<|python_tag|>", "")
_DSML = ParameterCalls(
    '<｜DSML｜invoke name="',
    '">',
    '<｜DSML｜parameter name="',
    '" string="',
    ('true">', 'false">'),
    "</｜DSML｜parameter>",
    "</｜DSML｜invoke>",
)

CALLS: dict[str, CallFormat] = {
    "harmony": CallFormat(run=harmony.read, run_or_json=harmony.read_or_json, marks=harmony.MARKS),
    "deepseek_v3": CallFormat(
        NamedCalls("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>"), _DEEPSEEK
    ),
    "deepseek_v31": CallFormat(NamedCalls("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"), _DEEPSEEK),
    "deepseek_dsml": CallFormat(
        _DSML, tuple((f"<｜DSML｜{name}>", f"</｜DSML｜{name}>") for name in ("function_calls", "tool_calls"))
    ),
    "kimi_k2": CallFormat(
        NamedCalls("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", numbered=True),
        (("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),),
    ),
    "glm45": CallFormat(
        ParameterCalls("<tool_call>", "", "<arg_key>", "</arg_key>", ("<arg_value>",), "</arg_value>", "</tool_call>")
    ),
    "seed_oss": _functions("<seed:tool_call>", "</seed:tool_call>", line_breaks=False),
    "qwen3_coder": _functions("<tool_call>", "</tool_call>", line_breaks=True),
    "minimax_m2": CallFormat(
        ParameterCalls('<invoke name="', '">', '<parameter name="', '">', (), "</parameter>", "</invoke>"),
        (("<minimax:tool_call>", "</minimax:tool_call>"),),
    ),
    "minicpm5": CallFormat(
        ParameterCalls('<function name="', '">', '<param name="', '">', (), "</param>", "</function>")
    ),
    "gemma4": CallFormat(LiteralCalls("<|tool_call>call:", "<tool_call|>", "{}", ":", '<|"|>')),
    "functiongemma": CallFormat(
        LiteralCalls("<start_function_call>call:", "<end_function_call>", "{}", ":", "<escape>")
    ),
    "lfm2": CallFormat(LiteralCalls("<|tool_call_start|>", "<|tool_call_end|>", "()", "=", listed=True)),
    "pythonic": CallFormat(
        LiteralCalls("", "", "()", "=", listed=True), around=(("<|python_start|>", "<|python_end|>"), _PYTHON)
    ),
    "functionary_v31": CallFormat(NamedCalls("<function=", ">", "</function>")),
    "functionary_v32": CallFormat(run=functionary.read),
    "apertus": _listed("<|tools_prefix|>", "<|tools_suffix|>", name=""),
    "command_r7b": _listed(
        "<|START_ACTION|>",
        "<|END_ACTION|>",
        "<|START_RESPONSE|>",
        "<|END_RESPONSE|>",
        name="tool_name",
        arguments="parameters",
    ),
    "nemotron": _listed("<TOOLCALL>", "</TOOLCALL>"),
    "apriel": _listed("<tool_calls>", "</tool_calls>", "[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]"),
    "phi4_functools": _listed("functools", ""),
    "phi4_mini": _listed("<|tool_call|>", "<|/tool_call|>"),
    "granite": _listed("<|tool_call|>", ""),
    "gigachat": CallFormat(JsonCalls("<|function_call|>", "")),
    "hermes": CallFormat(JsonCalls("<tool_call>", "</tool_call>")),
    "mistral": CallFormat(
        EitherCalls(
            JsonCalls("[TOOL_CALLS]", "", listed=True), NamedCalls("[TOOL_CALLS]", "[ARGS]", "", id_mark="[CALL_ID]")
        )
    ),
    "llama3_json": CallFormat(JsonCalls("", "", arguments="parameters"), around=(_PYTHON,)),
}
"""Formats of calls by name."""

THOUGHTS: dict[str, ThoughtStyle] = {
    "think": ThoughtStyle("<think>", "</think>"),
    "mistral": ThoughtStyle("[THINK]", "[/THINK]"),
    "seed": ThoughtStyle("<seed:think>", "</seed:think>"),
    "command": ThoughtStyle("<|START_THINKING|>", "<|END_THINKING|>"),
    "gemma4": ThoughtStyle("<|channel>thought\n", "<channel|>"),
    "apriel": ThoughtStyle("Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]"),
}
"""Formats of thoughts by name."""


def machine_of(
    calls: str, thoughts: str, opened: bool, tools: Sequence[Any], *, or_json: bool = False, shown: bool = False
) -> Machine:
    """Return a machine for one answer.

    Args:
        calls: name of its format of calls; "": none are parted.
        thoughts: name of its format of thoughts; "": none are parted.
        opened: the prompt ends with the first mark of a thought.
        tools: tools as the request gives them.
        or_json: it is calls alone, or else JSON alone.
        shown: thoughts stay in the text, with their marks; none of their parts is a call.
    """
    run = CALLS[calls].reads(tools, or_json=or_json) if calls else all_text
    if not thoughts or calls == "harmony":  # Its channels part thoughts from the rest.
        return TextMachine(run)
    style = THOUGHTS[thoughts]
    if not shown:
        return TextMachine(after_thoughts(style, opened, run))
    left_out = calls and style.close in CALLS[calls].dropped
    return TextMachine(with_thoughts(style, opened, run, "" if left_out else style.close))
