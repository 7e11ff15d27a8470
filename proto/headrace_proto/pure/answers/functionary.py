"""Answers of Functionary 3.2: to each recipient, with >>> between them."""

from __future__ import annotations

from headrace_proto.pure.answers.json_text import MAX_NAME, stream_value
from headrace_proto.pure.answers.named_calls import NAME
from headrace_proto.pure.answers.pieces import CallBegin, Steps
from headrace_proto.pure.answers.reader import Reader, as_text

_NEXT = ">>>"


def read(reader: Reader) -> Steps[None]:
    """Read an answer: the prompt ends with the first mark."""
    while True:
        reader.keep()
        yield from reader.space()
        yield from reader.sees(_NEXT)
        name, end = yield from reader.until(["\n"], MAX_NAME)
        if end < 0 or not NAME.fullmatch(name) or (name != "all" and (yield from reader.peek()) != "{"):
            break
        reader.commit()
        if name != "all":
            yield CallBegin(name)
            yield from stream_value(reader)
        if (yield from reader.upto([_NEXT], as_text)) < 0:
            return
    if kept := reader.kept():
        yield kept
    yield from reader.rest(as_text)
