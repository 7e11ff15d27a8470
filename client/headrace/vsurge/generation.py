"""Results of `vSurge.generate`: awaited or iterated."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from headrace._streaming.result_queue import ResultQueue
from headrace.client import Client
from headrace.compat.answers import Answers, Piece, Start, slots_of
from headrace.compat.counterparts import in_their_names
from headrace.errors import InvalidRequestError
from headrace.types import FinishReason
from headrace.vsurge.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class ReturnSample:
    """The state of one prompt.

    Attributes:
        text: the whole text so far.
        index: index of the prompt in the call.
        token_ids: ids of all tokens so far, EOS or a stop included.
        num_generated_tokens: number of these tokens.
        time_spent_computing: seconds from the start of the request until its latest tokens arrived here.
        tokens_per_second: generated tokens by that time; 0.0 before the first.
        finish_reason: why it ended; None while it goes on.
    """

    text: str = ""
    index: int = 0
    token_ids: list[int] = field(default_factory=list)
    num_generated_tokens: int = 0
    time_spent_computing: float = 0.0
    tokens_per_second: float = 0.0
    finish_reason: FinishReason | None = None

    @property
    def accumulated_text(self) -> str:
        """The whole text so far."""
        return self.text


class Generation:
    """The answers to the prompts of one call. The first step starts them.

    Awaited it is the list of final samples, one for each prompt. Iterated with `async for` it yields such a list each
    time that samples have changed, with all prompts in it; samples whose prompt has nothing yet are empty. Closing the
    iterator, or cancelling a step, stops the answers.
    """

    def __init__(self, client: Client, model: str, starts: Sequence[Start], *, stream: bool) -> None:
        self._client = client
        self._model = model
        self._starts = starts
        self._stream = stream

    def __await__(self) -> Generator[None, None, list[ReturnSample] | AsyncIterator[list[ReturnSample]]]:
        """Return the final samples; with stream=True an iterator as `async for` has it.

        Raises:
            HeadraceError: a prompt could not be started, or failed; the others are stopped.
        """
        return self._awaited().__await__()

    def __aiter__(self) -> AsyncIterator[list[ReturnSample]]:
        """Iterate over samples as they change; with stream=False over the final ones alone."""
        return self._changes() if self._stream else self._last_alone()

    async def _awaited(self) -> list[ReturnSample] | AsyncIterator[list[ReturnSample]]:
        return self._changes() if self._stream else await self._last()

    async def _last_alone(self) -> AsyncIterator[list[ReturnSample]]:
        yield await self._last()

    async def _last(self) -> list[ReturnSample]:
        samples: list[ReturnSample] = []
        async for changed in self._changes():
            samples = changed
        return samples

    async def _changes(self) -> AsyncIterator[list[ReturnSample]]:
        arrived: asyncio.Queue[Piece] = asyncio.Queue()
        samples = [ReturnSample(index=index) for index in range(len(self._starts))]
        begun = [0.0] * len(samples)
        starts = [partial(_timed, start, begun, index) for index, start in enumerate(self._starts)]
        slots = slots_of(await asyncio.to_thread(self._client.get_model, self._model))
        answers = Answers(self._client, starts, slots, _deliverer(arrived))
        running = len(samples)
        try:
            while running:
                pieces = [await arrived.get()]
                while not arrived.empty():
                    pieces.append(arrived.get_nowait())
                now = time.monotonic()
                for piece in pieces:
                    samples[piece.index] = _changed(samples[piece.index], piece, now - begun[piece.index])
                running -= sum(piece.last for piece in pieces)
                yield list(samples)
        finally:
            await asyncio.to_thread(answers.close)


def _deliverer(arrived: asyncio.Queue[Piece]) -> Callable[[Piece], None]:
    """Return what puts pieces into a queue of the running event loop, from other threads."""
    loop = asyncio.get_running_loop()

    def deliver(piece: Piece) -> None:
        with suppress(RuntimeError):  # The loop has ended, and nobody waits.
            loop.call_soon_threadsafe(arrived.put_nowait, piece)

    return deliver


def _timed(start: Start, begun: list[float], index: int) -> tuple[str, ResultQueue]:
    begun[index] = time.monotonic()
    return start()


def _changed(sample: ReturnSample, piece: Piece, seconds: float) -> ReturnSample:
    if isinstance(piece.error, InvalidRequestError):
        raise in_their_names(piece.error, SamplingParams.foreign) from piece.error
    if piece.error is not None:
        raise piece.error
    if piece.elements is None:
        return replace(sample, finish_reason=piece.queue.finish_reason if piece.queue is not None else None)
    ids = [*sample.token_ids, *piece.elements.ids_from_generate]
    return replace(
        sample,
        text=sample.text + piece.elements.text,
        token_ids=ids,
        num_generated_tokens=len(ids),
        time_spent_computing=seconds,
        tokens_per_second=len(ids) / seconds if seconds > 0 else 0.0,
    )
