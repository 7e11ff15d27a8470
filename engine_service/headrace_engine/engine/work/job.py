"""One job of a pool: its remaining pieces, and the caller that awaits its result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import suppress
from contextvars import copy_context
from traceback import clear_frames
from typing import Any, Generic, TypeVar

from headrace_engine.errors import Internal, in_words

_Result = TypeVar("_Result")


class Job(Generic[_Result]):
    """Work in pieces, a generator that is run up to each `yield`.

    The caller creates it and awaits `answer` in its own event loop; pool threads run its pieces one at a time, and set
    the result through that loop. Only one thread at a time holds the job; the pool's lock guards its flags.

    Attributes:
        since: time of arrival.
        begun: start time of the piece that is running; None: none is.
        pieces_done: number of completed pieces.
        wanted: the caller still awaits the result.
        ended: no further piece will run.
        stuck: a piece exceeded the time limit.
        timer: checks whether it waits or runs for too long.
    """

    def __init__(self, owner: str, pieces: Generator[None, None, _Result], size: int, since: float) -> None:
        self.owner, self.size, self.since = owner, size, since
        self.begun: float | None = None
        self.pieces_done = 0
        self.wanted, self.ended, self.stuck = True, False, False
        self._pieces = pieces
        self._context = copy_context()  # Carries the engine's name for logs.
        self._loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[_Result] = self._loop.create_future()
        self.timer: asyncio.TimerHandle | None = None

    def step(self) -> bool:
        """Run the next piece; True: there are more."""
        try:
            self._context.run(next, self._pieces)
        except StopIteration as end:
            self._call_in_loop(self._succeed, end.value)
        except Exception as error:
            clear_frames(error.__traceback__)  # What a refused file held is freed now, not by a garbage collection.
            self._call_in_loop(self.fail, error)
        except BaseException as error:  # A panic in native code, or a library that exits: it ends this job alone.
            failure = Internal(in_words(error))
            failure.__cause__ = error
            self._call_in_loop(self.fail, failure)
        else:
            self.pieces_done += 1
            return True
        return False

    def drop(self) -> None:
        """Discard the remaining pieces, whose result is not awaited."""
        self.ended = True
        self._pieces.close()
        self._call_in_loop(self._settle, None)

    def fail(self, error: BaseException) -> None:
        """Set an error as the result. Called in the event loop."""
        self._settle()
        if not self.answer.done():
            self.answer.set_exception(error)

    def _succeed(self, result: _Result) -> None:
        self._settle()
        if not self.answer.done():
            self.answer.set_result(result)

    def _settle(self, _: None = None) -> None:
        """Cancel the timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _call_in_loop(self, function: Callable[[Any], None], argument: Any) -> None:
        with suppress(RuntimeError):  # The event loop is closed: no caller is left.
            self._loop.call_soon_threadsafe(function, argument)
