"""Renders a model's chats in a process of its own.

A chat template is code that comes with a model. It may loop for ever or exhaust memory; in its own process that
affects only the request.
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Mapping
from threading import Lock

from headrace_engine.engine.chat.frames import (
    MAX_MEMORY,
    MAX_SECONDS,
    Answer,
    Order,
    Refusal,
    Setup,
)
from headrace_engine.engine.work.side_process import SideProcess
from headrace_engine.errors import InvalidArgument, Unavailable
from headrace_engine.request_types import Chat

_log = logging.getLogger(__name__)

_PROGRAM = (sys.executable, "-P", "-m", "headrace_engine.engine.chat.process")


class Renderer:
    """Renders with one model's template. Blocking; safe to call from several threads, which take turns.

    It owns its process, which starts with the first chat, is replaced after a crash, and ends with this object.

    Args:
        source: the template.
        with_tools: template for chats with tools; None: the same.
        variables: variables of every rendering, such as bos_token.
        special_texts: names of the special tokens, which are escaped in messages.
        field: path of the field to blame for an invalid template.
    """

    def __init__(
        self,
        source: str,
        with_tools: str | None,
        variables: Mapping[str, str],
        special_texts: tuple[str, ...],
        field: str = "chat",
    ) -> None:
        self._setup = Setup(source, with_tools, variables, special_texts, field)
        self._turn = Lock()
        self._process: SideProcess | None = None
        self._refusal: Refusal | None = None  # Of the template.
        self._closed = False

    def check(self) -> None:
        """Compile the template.

        Raises:
            InvalidArgument: BAD_TEMPLATE, the template is not valid.
            Unavailable: the renderer was closed.
        """
        with self._turn:
            self._answer(None)

    def render(self, chat: Chat, max_bytes: int, max_length: int) -> Answer:
        """Return the pieces of a chat (True: the name of a special token that a message contains), and warnings.

        Args:
            max_bytes: maximum bytes of text that max_length - 1 tokens can hold.

        Raises:
            InvalidArgument: as `ChatTemplate.render` and `check_size`; or the chat took too much time or memory.
            Unavailable: the renderer was closed.
        """
        with self._turn:
            return self._answer(Order(chat, max_bytes, max_length))

    def close(self) -> None:
        """End the process; a chat in progress fails, and so do later ones. Safe to call from any thread."""
        self._closed = True
        if self._process is not None:
            self._process.kill()  # Unblocks the thread that holds the lock and waits for an answer.
        with self._turn:
            self._end_process()

    def _answer(self, order: Order | None, attempts: int = 2) -> Answer:
        """The answer to an order; without one, once the template is compiled.

        What ends a process may come from outside, first of all where memory runs out. So a chat is tried again in
        another one, and only what ends that too is the template's doing.
        """
        try:
            return self._attempt(order)
        except _Ended as end:
            if end.took_too_long or attempts == 1:
                raise end.refusal() from None
            _log.warning("rendering_process_ended: status %d, the chat is tried again", end.status)
        return self._answer(order, attempts - 1)

    def _attempt(self, order: Order | None) -> Answer:
        if self._closed:
            raise _closed()
        if self._refusal is not None:
            raise self._refusal.error()
        if self._process is None or self._process.has_ended:  # Between chats, so no chat is to blame.
            self._begin()
        return Answer() if order is None else self._ask(order, "chat")

    def _begin(self) -> None:
        self._process = SideProcess(_PROGRAM, "renders chats")
        try:
            self._ask(self._setup, self._setup.field)
        except InvalidArgument as error:
            self._end_process()
            self._refusal = Refusal.of(error)
            raise

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None

    def _ask(self, message: Setup | Order, blamed: str) -> Answer:
        process = self._process
        assert process is not None, "a process is there when it is asked"
        try:
            answer = None if self._closed else process.ask(message, Answer)
        except (OSError, EOFError):
            answer = None
        except UnicodeEncodeError as error:
            text = f"holds half of a surrogate pair, which is not valid text: {error.object[error.start]!r}"
            raise InvalidArgument.field(blamed, text) from error
        if answer is None:
            status = None if self._closed else process.status
            self._end_process()
            raise _closed() if status is None else _Ended(status, blamed)
        if answer.refusal is not None:
            raise answer.refusal.error()
        return answer


def _closed() -> Unavailable:
    return Unavailable("the chat cannot be rendered: its model is being removed", retry_after=1.0)


class _Ended(Exception):
    """A process ended where an answer was due.

    Args:
        status: its exit status.
        blamed: path of the field that asked for it.
    """

    def __init__(self, status: int, blamed: str) -> None:
        super().__init__(status)
        self.status = status
        self.took_too_long = status == -signal.SIGPROF
        self._blamed = blamed

    def refusal(self) -> InvalidArgument:
        """What the caller is told, where it is the template's doing."""
        how = f"ended its process twice (status {self.status}); it may take {MAX_MEMORY >> 20} MiB of memory"
        if self.took_too_long:
            how = f"took more than {MAX_SECONDS:.0f} s of processor time"
        text = f"cannot be rendered: the chat template {how}"
        return InvalidArgument.field(self._blamed, text, reason="BAD_TEMPLATE")
