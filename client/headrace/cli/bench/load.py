"""The load: requests of given lengths, as many at once or as often as asked for, and what each one felt."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from headrace.aio import AsyncClient
from headrace.errors import HeadraceError

_PAUSE = 1.0
"""Seconds after a failure, where the service names none."""


@dataclass(frozen=True)
class Plan:
    """A load: which requests to send, and when.

    Attributes:
        model: name of a running model.
        requests: number of requests; None: as many as `seconds` allow.
        seconds: time in which requests are started; None: no limit.
        concurrency: maximum requests in progress; None: no limit.
        rate: mean starts per second, at random times as of callers that know nothing of each other; None: a request
            starts when one ends.
        prompt_tokens: least and largest number of random token ids of a prompt.
        output_tokens: least and largest number of tokens of an answer.
        shared_tokens: token ids with which all prompts begin, within their lengths.
        prompts: texts instead of random ids, taken in turn; answers then end where the model ends them.
        seed: of all that is random.
        fields: of the request, as `start_request` takes them.
    """

    model: str
    requests: int | None
    seconds: float | None
    concurrency: int | None
    rate: float | None
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    shared_tokens: int = 0
    prompts: Sequence[str] = ()
    seed: int = 0
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass
class Felt:
    """Times of one request, as its caller saw them. Times are seconds since the start of the load.

    Attributes:
        begun: when it was started.
        prompt_tokens: tokens of its prompt; 0 until it is accepted.
        arrivals: of its tokens: the time, and how many came at once.
        ended: when its end was known; None: not yet.
        failure: reason why it failed; "": it did not.
        message: of that failure.
    """

    begun: float
    prompt_tokens: int = 0
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    ended: float | None = None
    failure: str = ""
    message: str = ""

    @property
    def tokens(self) -> int:
        """Number of tokens that came."""
        return sum(count for _, count in self.arrivals)

    @property
    def first_token(self) -> float | None:
        """Seconds from its start to its first token; None: none came."""
        return self.arrivals[0][0] - self.begun if self.arrivals else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between one arrival of tokens and the next."""
        return [later - sooner for (sooner, _), (later, _) in pairwise(self.arrivals)]


class Load:
    """A load in progress.

    Args:
        client: calls the service.
        plan: what to ask for.
        vocabulary: number of token ids.

    Attributes:
        felt: by request, in the order of their starts.
    """

    def __init__(self, client: AsyncClient, plan: Plan, vocabulary: int) -> None:
        self._client, self._plan = client, plan
        self._random = random.Random(plan.seed)
        self._vocabulary = vocabulary
        self._shared = self._ids(plan.shared_tokens)
        self._began = 0.0
        self.felt: list[Felt] = []

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._began

    async def run(self) -> None:
        """Start all requests and wait for their ends. If it is cancelled, requests in progress are released."""
        self._began = time.perf_counter()
        limit = None if self._plan.concurrency is None else asyncio.Semaphore(self._plan.concurrency)
        due = 0.0
        async with asyncio.TaskGroup() as running:
            while self._goes_on():
                if limit is not None:
                    await limit.acquire()
                if self._plan.rate is not None:
                    due += self._random.expovariate(self._plan.rate)
                    await asyncio.sleep(max(0.0, due - self.elapsed))
                if not self._goes_on():
                    break
                felt = Felt(self.elapsed)
                self.felt.append(felt)
                task = running.create_task(self._one(felt, *self._next(len(self.felt) - 1)))
                if limit is not None:
                    task.add_done_callback(lambda _: limit.release())

    def _goes_on(self) -> bool:
        plan = self._plan
        more = plan.requests is None or len(self.felt) < plan.requests
        return more and (plan.seconds is None or self.elapsed < plan.seconds)

    def _next(self, index: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return prompt and fields of the next request."""
        plan = self._plan
        output = {"max_new_tokens": self._random.randint(*plan.output_tokens)}
        if plan.prompts:
            return {"text": plan.prompts[index % len(plan.prompts)]}, {**output, **plan.fields}
        length = self._random.randint(*plan.prompt_tokens)
        ids = (self._shared + self._ids(length - len(self._shared)))[:length]
        return {"ids": ids}, {**output, "ignore_eos": True, **plan.fields}

    def _ids(self, count: int) -> list[int]:
        return [self._random.randrange(self._vocabulary) for _ in range(count)]

    async def _one(self, felt: Felt, prompt: dict[str, Any], fields: dict[str, Any]) -> None:
        handle = ""
        try:
            handle, queue = await self._client.start_request(self._plan.model, **prompt, **fields)
            felt.prompt_tokens = queue.request.prompt_token_count
            while (element := await queue.Get()) is not None:
                if element.ids_from_generate:
                    felt.arrivals.append((self.elapsed, len(element.ids_from_generate)))
            felt.ended = self.elapsed
        except HeadraceError as error:
            felt.failure, felt.message = error.reason, error.message
            if self._plan.rate is None:
                await asyncio.sleep(error.retry_after or _PAUSE)  # Its user does not ask again at once.
        finally:
            if handle:
                with suppress(HeadraceError):  # Its engine is gone, and with it the request.
                    await self._client.release_request(handle)
