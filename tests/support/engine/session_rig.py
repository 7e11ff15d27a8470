"""A session on logs that the test fills, with a clock that the test moves."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from headrace_engine.engine.cores.cached_blocks import CachedBlocks
from headrace_engine.engine.requests.requests import Request
from headrace_engine.engine.results.result_log import ResultLog
from headrace_engine.engine.results.token_details import DetailOptions
from headrace_engine.engine.results.usage import Usage
from headrace_engine.engine.sessions.cache_watch import CacheWatch
from headrace_engine.engine.sessions.load import LoadWatch
from headrace_engine.engine.sessions.session import EngineSession
from headrace_engine.engine.sessions.session_channels import Attachment
from headrace_engine.engine.sessions.session_news import Watches
from headrace_engine.engine.sessions.session_update import ModelLoad, Rows, SessionUpdate
from headrace_engine.engine.sessions.usage_watch import UsageWatch
from headrace_engine.errors import InvalidArgument, NotFound
from headrace_engine.result_types import EndRecord, FinishReason, RequestStat
from headrace_engine.token_types import TokenDetails, TokenTensors, TopLogprobs
from headrace_proto.pure.shares import Shares

from support.clocks.timers import FakeTimers


class Story:
    """The part of a request that a session uses: its sequences' logs, and a count of its readers."""

    def __init__(
        self, sequences: int = 1, *, with_logprobs: bool = False, top_count: int = 0, hidden_size: int = 0
    ) -> None:
        self.logs = [ResultLog(DetailOptions(with_logprobs, top_count, hidden_size)) for _ in range(sequences)]
        self.readers = 0

    @property
    def log(self) -> ResultLog:
        return self.logs[0]

    def sequence(self, index: int) -> Any:
        if index >= len(self.logs):
            raise NotFound(f"no sequence {index}")
        return cast(Any, _Sequence(self.logs[index]))

    def arrive(self) -> None:
        self.readers += 1

    def leave(self) -> None:
        self.readers -= 1

    def say(self, *texts: str, logprob: float | None = None) -> None:
        """Append tokens as one step: the id of each is its position plus 7."""
        for text in texts:
            self.log.append(len(self.log) + 7, text, logprob)
        self.log.wake()

    def end(self, reason: FinishReason = FinishReason.EOS, text: str = "") -> EndRecord:
        record = EndRecord(reason, len(self.log), text, self.log.checksum, RequestStat())
        self.log.finish(record)
        return record


@dataclass
class _Sequence:
    log: ResultLog


@dataclass
class SessionRig:
    """An open session, and the requests that it reads from."""

    update_bytes: int = 960 * 1024
    stories: dict[str, Story] = field(default_factory=dict)
    loads: list[ModelLoad] = field(default_factory=list)
    cached: dict[str, CachedBlocks] = field(default_factory=dict)
    usage: dict[str, Usage] = field(default_factory=dict)
    timers: FakeTimers = field(default_factory=FakeTimers)
    closed: int = 0
    shares: Shares[EngineSession] = field(default_factory=lambda: Shares(10**6))

    def __post_init__(self) -> None:
        self.session = EngineSession(
            self.find,
            Watches(
                LoadWatch(lambda: self.loads),
                CacheWatch(lambda: self.cached),
                UsageWatch(self._usage),
            ),
            self.timers,
            self._count_close,
            self.shares,
            self.update_bytes,
        )

    def _usage(self, version: int) -> tuple[list[Usage], int]:
        return list(self.usage.values()), version + 1

    def find(self, handle: str, owner: str) -> Request:
        if handle not in self.stories or owner:
            raise NotFound(f"no request has the handle {handle!r}")
        return cast(Request, self.stories[handle])

    def story(self, handle: str = "h", **options: Any) -> Story:
        """Add a request that can be attached."""
        story = self.stories[handle] = Story(**options)
        return story

    def attach(
        self,
        channel: int = 1,
        handle: str = "h",
        index: int = 0,
        *,
        at: int = 0,
        window: int | None = None,
        owner: str = "",
    ) -> None:
        self.session.attach(Attachment(channel, handle, index), at, window, owner, "attach[0]")

    def ack(self, position: int, window: int | None = None, *, channel: int = 1) -> None:
        self.session.ack(channel, position, window, "acks[0]")

    async def update(self) -> SessionUpdate:
        """Return the update that is ready; fail if there is none."""
        update = await self.poll()
        assert update is not None
        return update

    async def poll(self) -> SessionUpdate | None:
        """Return the update that is ready now; None if there is none."""
        task = asyncio.create_task(self.session.next())
        await asyncio.sleep(0)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait([task])
        return None

    def _count_close(self, session: EngineSession) -> None:
        self.closed += 1


@dataclass(frozen=True)
class Row:
    """One row of an update."""

    channel: int
    position: int
    ids: tuple[int, ...]
    text: str
    checksum: int
    logprobs: list[float] | None = None
    tops: TopLogprobs | None = None
    tensors: TokenTensors | None = None


def rows_of(rows: Rows) -> list[Row]:
    """Convert columns to rows; all columns are equally long."""
    assert sum(rows.counts) == len(rows.token_ids)
    found, start = [], 0
    columns = zip(rows.channels, rows.positions, rows.counts, rows.texts, rows.checksums, strict=True)
    for number, (channel, position, count, text, checksum) in enumerate(columns):
        ids = tuple(rows.token_ids[start : start + count])
        details = rows.details.get(number, TokenDetails())
        more = details.token_logprobs, details.top_logprobs, details.tensors
        found.append(Row(channel, position, ids, text, checksum, *more))
        start += count
    return found


def facts(update: SessionUpdate) -> list[object]:
    """Return everything in an update, in order."""
    own = [("opened",)] if update.opened else []
    rows = rows_of(update.rows)
    return [*own, *update.attached, *rows, *update.statuses, *update.ends, *update.errors, *update.windows]


def violated(caught: pytest.ExceptionInfo[InvalidArgument]) -> list[str]:
    """Return the fields that a refusal names."""
    return [violation.field for violation in caught.value.violations]
