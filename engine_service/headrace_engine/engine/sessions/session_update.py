"""What a session tells at once, as plain data: one update becomes one message."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace_engine.errors import HeadraceError
from headrace_engine.model_types import ModelState
from headrace_engine.result_types import EndRecord, GenerateStatus, PrefixReuse, TokenDetails

UPDATE_BYTES = 960 * 1024
"""Bytes that an update is filled up to. The largest single fact fits into what is left up to 1 MiB."""

ROW_BYTES = 64
"""Bytes of a row beside its tokens, at most."""

_FACT_BYTES = 64
_END_BYTES = 512
_ERROR_BYTES = 8192


@dataclass(frozen=True, slots=True)
class Attached:
    """A channel reads its sequence now.

    Attributes:
        position: of the next token that comes.
        checksum: CRC-32 over all ids before it.
        status: the sequence's own.
    """

    channel: int
    position: int
    checksum: int
    status: GenerateStatus
    generated_length: int
    prefix: PrefixReuse | None


@dataclass(frozen=True, slots=True)
class StatusChange:
    """A sequence's own status changed, or its cache use became known; never a terminal status."""

    channel: int
    status: GenerateStatus
    prefix: PrefixReuse | None


@dataclass(frozen=True, slots=True)
class SequenceEnd:
    """A sequence ended; tokens before its end may still have to wait for a window."""

    channel: int
    end: EndRecord


@dataclass(frozen=True, slots=True)
class HandleError:
    """A channel reads nothing, or nothing more; it is gone."""

    channel: int
    handle: str
    index: int
    error: HeadraceError


@dataclass(frozen=True, slots=True)
class WindowState:
    """A channel's window closed, or tokens wait behind it.

    Attributes:
        position: of the next token that will be sent.
        limit: of the first one that waits for an ack.
    """

    channel: int
    position: int
    limit: int
    generated_length: int


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """What a gateway weighs when it places a request to a model.

    Attributes:
        tokens_free: tokens that new requests could take.
        tokens_total: tokens that the KV pool holds.
        tokens_to_prefill: prompt tokens, less those found in the cache, of requests that have no token yet.
        generated_tps: tokens generated a second, mean of the last 10 s.
        draining: the engine takes no new requests and will go away.
    """

    model_name: str
    state: ModelState
    running: int = 0
    waiting: int = 0
    tokens_free: int = 0
    tokens_total: int = 0
    tokens_to_prefill: int = 0
    generated_tps: float = 0.0
    draining: bool = False
    core_epoch: int = 0


@dataclass(slots=True)
class Rows:
    """Tokens of many sequences, as columns: entry i of each list is row i, `token_ids` has the rows one by one.

    Attributes:
        details: by row, where the config asked: what else is told about its tokens.
    """

    channels: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    checksums: list[int] = field(default_factory=list)
    details: dict[int, TokenDetails] = field(default_factory=dict)


@dataclass(slots=True)
class SessionUpdate:
    """Everything that changed since the last one, as far as it fits. Fields are applied in their order.

    Attributes:
        limit: bytes that it is filled up to.
        size: bytes that it has, rather too many than too few.
        pong: number of the newest ping.
    """

    limit: int = UPDATE_BYTES
    size: int = 0
    opened: bool = False
    attached: list[Attached] = field(default_factory=list)
    rows: Rows = field(default_factory=Rows)
    statuses: list[StatusChange] = field(default_factory=list)
    ends: list[SequenceEnd] = field(default_factory=list)
    errors: list[HandleError] = field(default_factory=list)
    windows: list[WindowState] = field(default_factory=list)
    loads: list[ModelLoad] = field(default_factory=list)
    pong: int | None = None
    closing: bool = False

    @property
    def room(self) -> int:
        """Bytes that are left; below 1 nothing more is added."""
        return self.limit - self.size

    def open(self) -> None:
        """The session stands."""
        self.opened = True
        self.size += _FACT_BYTES

    def close(self) -> None:
        """The engine goes away, and all was told."""
        self.closing = True
        self.size += _FACT_BYTES

    def answer(self, number: int) -> None:
        """Answer a ping."""
        self.pong = number
        self.size += _FACT_BYTES

    def attach(self, fact: Attached) -> None:
        """A channel reads."""
        self.attached.append(fact)
        self.size += _FACT_BYTES

    def change(self, fact: StatusChange) -> None:
        """A status changed."""
        self.statuses.append(fact)
        self.size += _FACT_BYTES

    def end(self, fact: SequenceEnd) -> None:
        """A sequence ended."""
        self.ends.append(fact)
        self.size += _END_BYTES + 4 * len(fact.end.text) + (_ERROR_BYTES if fact.end.error else 0)

    def refuse(self, fact: HandleError) -> None:
        """A channel is gone."""
        self.errors.append(fact)
        self.size += _ERROR_BYTES

    def hold(self, fact: WindowState) -> None:
        """Tokens wait behind a window."""
        self.windows.append(fact)
        self.size += _FACT_BYTES

    def load(self, fact: ModelLoad) -> None:
        """The load of a model changed."""
        self.loads.append(fact)
        self.size += _FACT_BYTES + 4 * len(fact.model_name) + 64
