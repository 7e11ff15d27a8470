"""One work of a pool: what is left of it, and who waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Generic, TypeVar

from headrace_engine.errors import Internal, in_words

_Result = TypeVar("_Result")


class Job(Generic[_Result]):
    """Work in pieces. Made by its caller, in whose event loop it answers; done in threads, one piece at a time.

    Attributes:
        since: when it came.
        begun: when the piece that is being done began; None: none is.
        pieces_done: pieces that were done.
        wanted: somebody waits for it.
        ended: nothing of it will be done any more.
        stuck: a piece took too long.
        watch: looks whether it waits or lasts too long.
    """

    def __init__(self, owner: str, pieces: Generator[None, None, _Result], size: int, since: float) -> None:
        self.owner, self.size, self.since = owner, size, since
        self.begun: float | None = None
        self.pieces_done = 0
        self.wanted, self.ended, self.stuck = True, False, False
        self._pieces = pieces
        self._context = copy_context()  # Names the engine in logs.
        self._loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[_Result] = self._loop.create_future()
        self.watch: asyncio.TimerHandle | None = None

    def step(self) -> bool:
        """Do the next piece; whether there are more."""
        try:
            self._context.run(next, self._pieces)
        except StopIteration as end:
            self._tell(self._succeed, end.value)
        except Exception as error:
            self._tell(self.fail, error)
        except BaseException as error:  # A panic of native code, or code of others that exits: it ends this work alone.
            failure = Internal(in_words(error))
            failure.__cause__ = error
            self._tell(self.fail, failure)
        else:
            self.pieces_done += 1
            return True
        return False

    def drop(self) -> None:
        """Let go of what is left; nobody waits for it."""
        self.ended = True
        self._pieces.close()
        self._tell(self._settle, None)

    def fail(self, error: BaseException) -> None:
        """Answer with an error; in the event loop."""
        self._settle()
        if not self.answer.done():
            self.answer.set_exception(error)

    def _succeed(self, result: _Result) -> None:
        self._settle()
        if not self.answer.done():
            self.answer.set_result(result)

    def _settle(self, _: None = None) -> None:
        """It needs no watch any more."""
        if self.watch is not None:
            self.watch.cancel()
            self.watch = None

    def _tell(self, how: Callable[[Any], None], what: Any) -> None:
        with suppress(RuntimeError):  # The event loop is closed, and with it everyone who could be told.
            self._loop.call_soon_threadsafe(how, what)
