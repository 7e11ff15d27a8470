"""How the answers to a model's chats are parted into calls of tools, thoughts and text, and what calls are held to."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from headrace_proto.pure.answers.choice import calls_of, opens_thought, thoughts_of
from headrace_proto.pure.answers.formats import CALLS, THOUGHTS

from headrace_engine.chat_types import AnswerFormat, Chat, ChatAnswer, ToolChoice, ToolChoiceMode
from headrace_engine.errors import InvalidArgument, quoted
from headrace_engine.guided.calls.wanted import WantedCalls
from headrace_engine.models.tokenizer import TokenizerBundle
from headrace_engine.request_parts import ResponseFormat, ResponseFormatKind

_CHOICE = "chat.tool_choice"


class Answers:
    """The answers to one model's chats.

    Args:
        bundle: the tokenizer.
        source: the chat template.
        with_tools: that of chats with tools; None: the same.
    """

    def __init__(self, bundle: TokenizerBundle, source: str, with_tools: str | None) -> None:
        self._bundle = bundle
        self._thoughts = thoughts_of(source)
        self._calls = calls_of(with_tools or source)

    def shown(self, chat: Chat) -> Chat:
        """Return a chat as the template sees it: without tools that may not be called.

        Raises:
            InvalidArgument: what it says of tools does not fit together.
        """
        if chat.tool_format and chat.tool_format not in CALLS:
            text = f"= {quoted(chat.tool_format)} is not known; allowed: {', '.join(CALLS)}"
            raise InvalidArgument.field("chat.tool_format", text)
        choice = chat.tool_choice
        if choice is None or not choice.is_free:
            _check(choice, chat)
        return replace(chat, tools=()) if choice is not None and choice.mode is ToolChoiceMode.NONE else chat

    def of(self, shown: Chat, prompt: str) -> ChatAnswer:
        """Return what is known of the answer to a chat.

        Args:
            shown: the chat, as `shown` returned it.
            prompt: the rendered prompt.

        Raises:
            InvalidArgument: what calls are to be held to cannot be enforced.
        """
        calls = (shown.tool_format or self._calls) if shown.tools else ""
        if calls != "harmony" and self._calls == "harmony":
            calls = shown.tool_format or self._calls  # All its answers have channels.
        form = AnswerFormat(calls, self._thoughts, opens_thought(self._thoughts, prompt))
        keeps = shown.tool_choice is not None if shown.keep_marks is None else shown.keep_marks
        wanted = _enforced(shown, form)
        if not keeps:
            return ChatAnswer(wanted=wanted)
        return ChatAnswer(form, wanted, self._marks(form), may_call=bool(shown.tools and calls))

    def _marks(self, form: AnswerFormat) -> frozenset[int]:
        style = THOUGHTS[form.thoughts]
        marks = (style.open, style.close, *(CALLS[form.calls].all_marks if form.calls else ()))
        specials = zip(sorted(self._bundle.special_ids), self._bundle.special_texts, strict=True)
        return frozenset(token_id for token_id, text in specials if text and any(text in mark for mark in marks))


def _check(choice: ToolChoice | None, chat: Chat) -> None:
    if choice is None:
        return
    if not chat.tools:
        raise InvalidArgument.field(_CHOICE, "is set without tools")
    if choice.mode is ToolChoiceMode.NONE:
        raise InvalidArgument.field(_CHOICE, "is NONE, which excludes names, strict and parallel")


def _enforced(chat: Chat, form: AnswerFormat) -> ResponseFormat | None:
    """Return what an answer is held to by a chat's choice of tools alone; None: nothing."""
    choice = chat.tool_choice
    if choice is None or choice.is_free or not chat.tools:
        return None
    if not form.calls:
        text = "cannot be enforced: the model's template shows tools in no form that is known; name one in tool_format"
        raise InvalidArgument.unsupported(_CHOICE, f"{text} ({', '.join(CALLS)})")
    return _wanted(chat, form, choice)


def _wanted(chat: Chat, form: AnswerFormat, choice: ToolChoice, schema: str | None = None) -> ResponseFormat:
    wanted = WantedCalls(
        calls=form.calls,
        thoughts=form.thoughts,
        opened=form.thought_open,
        tools=chat.tools,
        required=choice.mode is ToolChoiceMode.REQUIRED,
        parallel=choice.parallel,
        names=choice.names,
        strict=choice.strict,
        schema=schema,
    )
    return wanted.format()


def in_format(
    answer: ChatAnswer, requested: ResponseFormat | None, chat: Chat | None, ends: Collection[int] = ()
) -> ChatAnswer:
    """Return what is known of an answer once its response format is.

    A format describes the whole text, which so goes on with no thought that the prompt has begun and ends with no mark.
    Structural tags have free text, which may. Calls may come instead of JSON; where they must come, the format has no
    effect.

    Args:
        chat: the chat; None: the prompt is none.
        ends: ids that end a sequence, of which some may be marks, as `<|return|>` is.

    Raises:
        InvalidArgument: calls could not be told from JSON.
    """
    if requested is None or requested.kind is ResponseFormatKind.STRUCTURAL_TAG:
        return answer
    answer = replace(answer, kept=answer.kept.difference(ends))
    if chat is not None and requested.schema is not None and (answer.may_call or answer.wanted is not None):
        return _or_json(answer, requested.schema, chat, chat.tool_choice or ToolChoice())
    return answer if answer.format is None else replace(answer, format=replace(answer.format, thought_open=False))


def _or_json(answer: ChatAnswer, schema: str, chat: Chat, choice: ToolChoice) -> ChatAnswer:
    if choice.mode is ToolChoiceMode.REQUIRED:
        return answer
    if answer.format is None:
        text = "is false, without which calls cannot be told from the JSON that response_format asks for"
        raise InvalidArgument.field("chat.keep_marks", text)
    form = replace(answer.format, thought_open=False, or_json=True)
    return replace(answer, format=form, wanted=_wanted(chat, form, choice, schema))


def of_tools(error: InvalidArgument, *, beside: bool) -> InvalidArgument:
    """Return the refusal of a format as that of a chat's choice of tools, or of tools beside a response format."""
    parts: Sequence[str] = [violation.description for violation in error.violations] or [error.message]
    return InvalidArgument.field("chat.tools" if beside else _CHOICE, parts[0], reason=error.reason)
