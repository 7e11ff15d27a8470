"""`python -m headrace_engine.engine.chat.process FD`: renders chats for the engine at the other end of FD.

The process confines itself: the system limits its CPU time and memory, whatever a template does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import BinaryIO

from headrace_engine.engine.chat.escaping import Shield
from headrace_engine.engine.chat.frames import (
    MAX_MEMORY,
    MAX_SECONDS,
    Answer,
    Order,
    Refusal,
    Setup,
)
from headrace_engine.engine.chat.template import ChatTemplate
from headrace_engine.engine.config.prompt_size import check_size
from headrace_engine.engine.work.side_process import clock, read, serve, write
from headrace_engine.errors import InvalidArgument


def main(descriptor: int) -> None:
    """Serve requests until the engine closes the connection."""
    serve("rendering", descriptor, MAX_MEMORY, _serve)


def _serve(stream: BinaryIO) -> None:
    setup = read(stream, Setup)
    shield = Shield(setup.special_texts)
    templates: list[ChatTemplate] = []

    def compile_all() -> Answer:
        sources = (setup.source, setup.source if setup.with_tools is None else setup.with_tools)
        templates[:] = [ChatTemplate(source, setup.variables, setup.field) for source in sources]
        return Answer()

    def render(order: Order) -> Answer:
        template = templates[bool(order.chat.tools)]
        rendered = template.render(order.chat, shield)
        pieces = shield.split(rendered.text)
        check_size("".join(piece for piece, _ in pieces), order.max_bytes, order.max_length)
        return Answer(tuple(pieces), rendered.warnings)

    write(stream, _bounded(compile_all))
    while True:
        order = read(stream, Order)
        write(stream, _bounded(partial(render, order)))


def _bounded(work: Callable[[], Answer]) -> Answer:
    try:
        with clock(MAX_SECONDS):
            return work()
    except InvalidArgument as error:
        return Answer(refusal=Refusal.of(error))


if __name__ == "__main__":
    main(int(sys.argv[1]))
