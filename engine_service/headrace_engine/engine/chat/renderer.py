"""Renders a model's chats in a process of its own.

A chat template is code that comes with a model. It may loop for ever or exhaust memory; in its own process that
affects only the request.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Mapping
from typing import TypeVar

from headrace_engine.chat_types import Chat
from headrace_engine.engine.chat.frames import (
    MAX_MEMORY,
    MAX_SECONDS,
    Answer,
    Order,
    Refusal,
    Setup,
)
from headrace_engine.engine.work.side_worker import Ended, SideWorker, half_a_pair
from headrace_engine.errors import InvalidArgument, Unavailable

_log = logging.getLogger(__name__)

_MODULE = "headrace_engine.engine.chat.process"
_Result = TypeVar("_Result")


class Renderer:
    """Renders with one model's template. Blocking; safe to call from several threads, which take turns.

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
        self._field = field
        self._template = _Template()
        setup = Setup(source, with_tools, variables, special_texts, field)
        self._worker = SideWorker(_MODULE, "renders chats", setup, Answer, _closed, self._template.compiled)

    def check(self) -> None:
        """Compile the template.

        Raises:
            InvalidArgument: BAD_TEMPLATE, the template is not valid.
            Unavailable: the renderer was closed.
        """
        self._attempt(self._worker.start, self._field)

    def render(self, chat: Chat, max_bytes: int, max_length: int) -> Answer:
        """Return the pieces of a chat (True: the name of a special token that a message contains), and warnings.

        Args:
            max_bytes: maximum bytes of text that max_length - 1 tokens can hold.

        Raises:
            InvalidArgument: as `ChatTemplate.render` and `check_size`; or the chat took too much time or memory.
            Unavailable: the renderer was closed.
        """
        answer = self._attempt(lambda: self._worker.ask(Order(chat, max_bytes, max_length)), "chat")
        if answer.refusal is not None:
            raise answer.refusal.error()
        return answer

    def close(self) -> None:
        """End the process; a chat in progress fails, and so do later ones. Safe to call from any thread."""
        self._worker.close()

    def _attempt(self, work: Callable[[], _Result], field: str, attempts: int = 2) -> _Result:
        """Return the result of `work`. If its process ends, try once more in another one.

        What ends a process may come from outside, above all a lack of memory. So the template is only to blame for the
        end of the second one.

        Args:
            field: path of the field that requested the work.
        """
        self._template.check()
        try:
            return work()
        except UnicodeEncodeError as error:
            raise InvalidArgument.field(field, half_a_pair(error)) from error
        except Ended as end:
            if attempts == 1 or end.status == -signal.SIGPROF:
                raise _blamed(self._field if end.at_start else field, end.status) from None
            _log.warning("rendering_process_ended: status %d, the chat is tried again", end.status)
        return self._attempt(work, field, attempts - 1)


class _Template:
    """What compiling the template has shown. The worker knows this alone: its process ends with the renderer."""

    def __init__(self) -> None:
        self._refusal: Refusal | None = None

    def compiled(self, answer: Answer) -> None:
        """Take the answer to the template; raise its refusal."""
        self._refusal = answer.refusal
        self.check()

    def check(self) -> None:
        """Raise the template's refusal, if it was refused."""
        if self._refusal is not None:
            raise self._refusal.error()


def _closed() -> Unavailable:
    return Unavailable("the chat cannot be rendered: its model is being removed", retry_after=1.0)


def _blamed(field: str, status: int) -> InvalidArgument:
    """Build the refusal of a template that ends its process."""
    how = f"ended its process twice (status {status}); it may take {MAX_MEMORY >> 20} MiB of memory"
    if status == -signal.SIGPROF:
        how = f"took more than {MAX_SECONDS:.0f} s of processor time"
    return InvalidArgument.field(field, f"cannot be rendered: the chat template {how}", reason="BAD_TEMPLATE")
