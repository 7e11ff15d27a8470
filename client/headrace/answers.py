"""Parts answers of chats into calls of tools, thoughts and text, as they come or as a whole.

    handle, queue = client.start_request("m", messages=messages, tools=tools, tool_choice="auto")
    answer = whole(parts(queue, tools))
    for call in answer.calls:
        ...

The request must keep the marks of calls and thoughts in its text: with `tool_choice`, or with `keep_marks`. The formats
are those of docs/tools.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace_proto.pure.answers.formats import machine_of
from headrace_proto.pure.answers.pieces import Arguments, CallBegin, Machine, Piece, Thought

from headrace._streaming.aio_queue import AsyncResultQueue
from headrace._streaming.result_queue import ResultQueue
from headrace.types import AcceptedRequest

__all__ = ["Answer", "Arguments", "Call", "CallBegin", "Piece", "Thought", "machine", "parts", "parts_async", "whole"]


@dataclass(frozen=True)
class Call:
    """A call of a tool.

    Attributes:
        name: of the function.
        arguments: one JSON object as text, as far as the model wrote one: only strict functions are held to it.
        id: that the model gave it; None: none.
    """

    name: str
    arguments: str
    id: str | None = None


@dataclass(frozen=True)
class Answer:
    """A whole answer.

    Attributes:
        text: what the model says.
        thoughts: what it thought before.
        calls: the tools that it calls.
    """

    text: str
    thoughts: str
    calls: tuple[Call, ...]


def machine(request: AcceptedRequest, tools: Sequence[Mapping[str, Any]] = (), *, thoughts: bool = True) -> Machine:
    """Return what parts the text of one sequence: `feed` it what was read, and `end` it.

    Args:
        request: the accepted request.
        tools: the request's tools: where a format writes values without quotation marks, these say which are strings.
        thoughts: part thoughts too; False: they stay in the text, with their marks, and none of their parts is a call.

    Raises:
        ValueError: the text of the request lacks the marks: start it with `keep_marks`.
    """
    form = request.answer_format
    if form is None:
        raise ValueError("the request keeps no marks of calls and thoughts in its text: start it with keep_marks=True")
    return machine_of(form.calls, form.thoughts, form.thought_open, tools, or_json=form.or_json, shown=not thoughts)


def parts(queue: ResultQueue, tools: Sequence[Mapping[str, Any]] = (), *, thoughts: bool = True) -> Iterator[Piece]:
    """Read a queue from its beginning to its end; yield pieces of the answer as soon as they are certain.

    A piece is text, a `Thought`, the beginning of a call, or a part of that call's `Arguments`. Arguments and raised
    errors are those of `machine`, and errors those of reading.
    """
    parting = machine(queue.request, tools, thoughts=thoughts)
    for elements in queue:
        yield from parting.feed(elements.text)
    yield from parting.end()


async def parts_async(
    queue: AsyncResultQueue, tools: Sequence[Mapping[str, Any]] = (), *, thoughts: bool = True
) -> AsyncIterator[Piece]:
    """Read a queue as `parts` does."""
    parting = machine(queue.request, tools, thoughts=thoughts)
    async for elements in queue:
        for piece in parting.feed(elements.text):
            yield piece
    for piece in parting.end():
        yield piece


def whole(pieces: Iterable[Piece]) -> Answer:
    """Return the answer that consists of these pieces."""
    text: list[str] = []
    thoughts: list[str] = []
    calls: list[tuple[CallBegin, list[str]]] = []
    for piece in pieces:
        if isinstance(piece, str):
            text.append(piece)
        elif isinstance(piece, Thought):
            thoughts.append(piece.text)
        elif isinstance(piece, CallBegin):
            calls.append((piece, []))
        elif calls:
            calls[-1][1].append(piece.text)
    found = (Call(begin.name, "".join(given), begin.id) for begin, given in calls)
    return Answer("".join(text), "".join(thoughts), tuple(found))
