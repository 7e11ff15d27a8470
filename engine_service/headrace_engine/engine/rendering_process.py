"""`python -m headrace_engine.engine.rendering_process FD`: renders chats for the engine at the other end of FD.

It confines itself: what a template may take is bounded by the system, whatever the template does.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from headrace_engine.engine.chat_template import ChatTemplate
from headrace_engine.engine.rendering_messages import (
    MAX_MEMORY,
    MAX_SECONDS,
    Answer,
    Order,
    Refusal,
    Setup,
    read,
    write,
)
from headrace_engine.engine.shield import Shield
from headrace_engine.engine.text_size import check_size
from headrace_engine.errors import InvalidArgument


def main(descriptor: int) -> None:
    """Answer until the engine hangs up."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # The engine ends it.
    _confine()
    with (
        socket.socket(fileno=descriptor) as connection,
        connection.makefile("rwb") as file,
        suppress(OSError, EOFError),
    ):
        _serve(cast(BinaryIO, file))


def _confine() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    os.nice(5)  # Streams go first.
    with suppress(OSError):  # Where memory runs out, this process goes before others.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


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
        pieces = shield.split(template.render(order.chat, shield))
        check_size("".join(piece for piece, _ in pieces), order.max_bytes, order.max_length)
        return Answer(tuple(pieces))

    write(stream, _bounded(compile_all))
    while True:
        order = read(stream, Order)
        write(stream, _bounded(partial(render, order)))


def _bounded(work: Callable[[], Answer]) -> Answer:
    try:
        with _clock():
            return work()
    except InvalidArgument as error:
        return Answer(refusal=Refusal.of(error))


@contextmanager
def _clock() -> Iterator[None]:
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
