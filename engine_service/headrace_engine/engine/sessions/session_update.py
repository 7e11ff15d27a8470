"""One update of a session, as plain data; it becomes one message."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace_engine.engine.results.usage import Usage
from headrace_engine.errors import HeadraceError
from headrace_engine.model_types import ModelState
from headrace_engine.result_types import EndRecord, GenerateStatus, PrefixReuse
from headrace_engine.token_types import TokenDetails

UPDATE_BYTES = 960 * 1024
"""Maximum size of an update, in bytes. The largest single entry fits into the rest up to 1 MiB."""

ROW_BYTES = 64
"""Maximum size of a row without its tokens, in bytes."""

KEY_SIZE = 18
"""Size of a block's key, in bytes."""

_FACT_BYTES = 64
_END_BYTES = 512
_ERROR_BYTES = 8192


@dataclass(frozen=True, slots=True)
class Attached:
    """A channel was attached to its sequence.

    Attributes:
        position: position of the next token.
        checksum: CRC-32 of all ids before it.
        status: status of the sequence.
    """

    channel: int
    position: int
    checksum: int
    status: GenerateStatus
    generated_length: int
    prefix: PrefixReuse | None


@dataclass(frozen=True, slots=True)
class StatusChange:
    """The status of a sequence changed, or its prefix reuse became known; never a terminal status."""

    channel: int
    status: GenerateStatus
    prefix: PrefixReuse | None


@dataclass(frozen=True, slots=True)
class SequenceEnd:
    """A sequence ended; tokens before its end may still wait for the window."""

    channel: int
    end: EndRecord


@dataclass(frozen=True, slots=True)
class HandleError:
    """A channel failed and is detached."""

    channel: int
    handle: str
    index: int
    error: HeadraceError


@dataclass(frozen=True, slots=True)
class WindowState:
    """A channel's window closed, or tokens wait behind it.

    Attributes:
        position: position of the next token to send.
        limit: position of the first token that waits for an ack.
    """

    channel: int
    position: int
    limit: int
    generated_length: int


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """Load of a model, by which a gateway places requests.

    Attributes:
        tokens_free: tokens of the KV pool available to new requests.
        tokens_total: capacity of the KV pool, in tokens.
        tokens_to_prefill: prompt tokens still to compute, without those found in the prefix cache.
        generated_tps: generated tokens per second, mean of the last 10 s.
        draining: the engine accepts no new requests and is shutting down.
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


@dataclass(frozen=True, slots=True)
class CacheEvent:
    """A change of a model's prefix cache.

    Attributes:
        stored: blocks can be reused now; False: they are gone; None: nothing is cached any more.
        keys: keys of the blocks; of stored ones, each is the parent of the next.
        parent: of stored blocks, key of the one before the first; empty: that one begins a prompt.
        host: the tier is host memory.
        block_size: ids of a stored block; else 0.
    """

    model_name: str
    stored: bool | None
    keys: list[bytes]
    parent: bytes = b""
    host: bool = False
    block_size: int = 0


@dataclass(slots=True)
class Rows:
    """Tokens of many sequences, as columns: entry i of each list is row i, `token_ids` has the rows one by one.

    Attributes:
        details: by row, where requested: logprobs and other details of its tokens.
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
    """All changes since the last update, as far as they fit. Readers apply the fields in order.

    Attributes:
        limit: maximum size, in bytes.
        size: upper bound of its current size, in bytes.
        first_cache_event: number of the first entry of `cache`.
        pong: number of the ping that is answered.
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
    cache: list[CacheEvent] = field(default_factory=list)
    usage: list[Usage] = field(default_factory=list)
    first_cache_event: int = 0
    pong: int | None = None
    closing: bool = False

    @property
    def space(self) -> int:
        """Number of bytes left; below 1 nothing more is added."""
        return self.limit - self.size

    @property
    def facts(self) -> int:
        """Number of entries about channels other than rows."""
        about = len(self.attached) + len(self.statuses) + len(self.ends)
        return about + len(self.errors) + len(self.windows)

    def open(self) -> None:
        """Add that the session is open."""
        self.opened = True
        self.size += _FACT_BYTES

    def close(self) -> None:
        """Add that the engine is shutting down and everything was sent."""
        self.closing = True
        self.size += _FACT_BYTES

    def answer(self, number: int) -> None:
        """Add the answer to a ping."""
        self.pong = number
        self.size += _FACT_BYTES

    def attach(self, fact: Attached) -> None:
        """Add an attached channel."""
        self.attached.append(fact)
        self.size += _FACT_BYTES

    def change(self, fact: StatusChange) -> None:
        """Add a changed status."""
        self.statuses.append(fact)
        self.size += _FACT_BYTES

    def end(self, fact: SequenceEnd) -> None:
        """Add the end of a sequence."""
        self.ends.append(fact)
        self.size += _END_BYTES + 4 * len(fact.end.text) + (_ERROR_BYTES if fact.end.error else 0)

    def refuse(self, fact: HandleError) -> None:
        """Add a failed channel."""
        self.errors.append(fact)
        self.size += _ERROR_BYTES

    def hold(self, fact: WindowState) -> None:
        """Add a closed window."""
        self.windows.append(fact)
        self.size += _FACT_BYTES

    def load(self, fact: ModelLoad) -> None:
        """Add the load of a model."""
        self.loads.append(fact)
        self.size += _FACT_BYTES + 4 * len(fact.model_name) + 64

    def report_usage(self, fact: Usage) -> None:
        """Add what an owner uses."""
        self.usage.append(fact)
        self.size += _FACT_BYTES + 4 * len(fact.owner)

    def report_cache(self, events: list[CacheEvent], first: int) -> None:
        """Add changes of prefix caches; `first`: number of the first one."""
        self.first_cache_event = first
        self.cache += events
        self.size += sum(_FACT_BYTES + 4 * len(event.model_name) + KEY_SIZE * len(event.keys) for event in events)
