"""Renders a model's chats in a process of its own.

A chat template is code that came with a model. It may loop for ever, fill the memory, or compute a number that takes
the machine a year: there that costs nobody but who asked for it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Mapping
from contextlib import suppress
from threading import Lock
from typing import BinaryIO, cast

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
from headrace_engine.errors import Internal, InvalidArgument
from headrace_engine.request_types import Chat

_PROGRAM = (sys.executable, "-P", "-m", "headrace_engine.engine.rendering_process")
_STDERR = 2


class Renderer:
    """Renders with one model's template. Blocking; safe to use from several threads, one chat after the other.

    Its process starts with the first chat, is replaced when a chat took it too far, and ends with this object.

    Args:
        source: the template.
        with_tools: another for chats that bring tools; None: the same.
        variables: what every rendering sees, such as bos_token.
        special_texts: names of the special tokens: where a message holds one, it is told apart.
        field: path of the field that is to blame for a template that is none.
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
        self._process: _Process | None = None
        self._refusal: Refusal | None = None  # Of the template.

    def check(self) -> None:
        """Compile the template.

        Raises:
            InvalidArgument: BAD_TEMPLATE, it is none.
        """
        with self._turn:
            self._ready()

    def render(self, chat: Chat, max_bytes: int, max_length: int) -> list[tuple[str, bool]]:
        """The text of a chat in pieces; True: the name of a special token that a message wrote.

        Args:
            max_bytes: of the text: more than max_length - 1 tokens cannot hold.

        Raises:
            InvalidArgument: as `ChatTemplate.render` and `check_size`; or the chat took too much time or memory.
        """
        with self._turn:
            return list(self._ask(self._ready(), Order(chat, max_bytes, max_length)).pieces)

    def _ready(self) -> _Process:
        if self._refusal is not None:
            raise self._refusal.error()
        if self._process is None or self._process.has_ended:  # Between chats, so no chat is to blame.
            process = _Process()
            self._ask(process, self._setup)
            self._process = process
        return self._process

    def _ask(self, process: _Process, message: Setup | Order) -> Answer:
        try:
            answer = process.ask(message)
        except (OSError, EOFError):
            self._process = None
            blamed = self._setup.field if isinstance(message, Setup) else "chat"
            text = f"cannot be rendered: the chat template {process.manner_of_end()}"
            raise InvalidArgument.field(blamed, text, reason="BAD_TEMPLATE") from None
        except UnicodeEncodeError as error:
            text = f"holds half of a surrogate pair, which is no text: {error.object[error.start]!r}"
            raise InvalidArgument.field("chat", text) from error
        if answer.refusal is not None:
            self._refusal = answer.refusal if isinstance(message, Setup) else None
            raise answer.refusal.error()
        return answer


class _Process:
    """A process that renders, and the socket to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                # A session of its own keeps the terminal's signals from it. What it prints is no answer.
                self._process = subprocess.Popen(
                    [*_PROGRAM, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=_STDERR,
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise Internal(f"the process that renders chats cannot be started: {error}") from error
        self._stream = cast(BinaryIO, ours.makefile("rwb"))
        self._end = weakref.finalize(self, _end, os.getpid(), self._process, ours, self._stream)

    @property
    def has_ended(self) -> bool:
        """Whether it is gone: where memory runs out, the system ends it before others."""
        return self._process.poll() is not None

    def ask(self, message: Setup | Order) -> Answer:
        """Its answer.

        Raises:
            OSError, EOFError: it ended.
            UnicodeEncodeError: the message holds a text that is none.
        """
        write(self._stream, message)
        return read(self._stream, Answer)

    def manner_of_end(self) -> str:
        """How it came to its end, in words that follow "the chat template"."""
        self._process.wait()
        self._end()
        if self._process.returncode == -signal.SIGPROF:
            return f"took more than {MAX_SECONDS:.0f} s of processor time"
        return f"ended its process (status {self._process.returncode}); it may take {MAX_MEMORY >> 20} MiB of memory"


def _end(owner: int, process: subprocess.Popen[bytes], connection: socket.socket, stream: BinaryIO) -> None:
    """Let go of a process. A fork of the one that started it has nothing to end."""
    if os.getpid() == owner:
        process.kill()
        process.wait()
    with connection, suppress(OSError):  # What was not sent cannot be sent any more.
        stream.close()
