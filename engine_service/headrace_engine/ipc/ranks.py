"""Messages between the ranks of a model, encoded by `frames.py`: rank 0 commands, the others answer.

Every rank gets the same commands in the same order, so that all take part in the same exchanges. A rank that fails
answers with CoreFailed, and ends. Between two commands it answers pings.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace_engine.ipc.commands import Ping, Shutdown
from headrace_engine.ipc.messages import CoreFailed, Pong, RunnerSizes
from headrace_engine.ipc.plans import AdapterPlan, CorePlan


@dataclass(frozen=True, slots=True)
class RankPlan:
    """The first message to a rank: it loads its share of the weights, and answers with RankLoaded.

    Attributes:
        plan: that of the core, with the rank's own device and its share of the threads.
        rank: its number, at least 1.
    """

    plan: CorePlan
    rank: int


@dataclass(frozen=True, slots=True)
class RankLoaded:
    """The rank has its weights."""


@dataclass(frozen=True, slots=True)
class JoinRanks:
    """Meet the other ranks at a place of this host, measure the largest step with them, and answer with RankSizes."""

    place: str


@dataclass(frozen=True, slots=True)
class RankSizes(RunnerSizes):
    """Sizes of the rank's share of the model, on its device."""


@dataclass(frozen=True, slots=True)
class AllocateRank:
    """Allocate the rank's share of the pools."""

    num_blocks: int
    num_host_blocks: int


@dataclass(frozen=True, slots=True)
class RankCopies:
    """Copy blocks, as `BlockCopies` says."""

    to_host: list[tuple[int, int]]
    to_pool: list[tuple[int, int]]
    within: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class ReadRankAdapter:
    """Read the rank's share of an adapter, while steps go on, and answer with RankAdapterRead."""

    adapter: AdapterPlan


@dataclass(frozen=True, slots=True)
class RankAdapterRead:
    """The rank has read its share of an adapter.

    Attributes:
        error: why not; "": it has.
    """

    number: int
    error: str


@dataclass(frozen=True, slots=True)
class DropRankAdapter:
    """Forget the adapter of this number that was read: another rank could not read it."""

    number: int


@dataclass(frozen=True, slots=True)
class LoadRankAdapter:
    """Load the adapter of this number that was read, and answer with RankAdapterLoaded."""

    number: int


@dataclass(frozen=True, slots=True)
class RankAdapterLoaded:
    """The rank has its share of the adapter.

    Attributes:
        error: why not; "": it has.
    """

    error: str


@dataclass(slots=True)  # Frozen ones take twice as long to make, and there is one for every row.
class RankRow:
    """One sequence's row of a step, without what rank 0 alone needs to sample.

    Attributes:
        token_ids, start, blocks: as in `SequenceStep`.
        has_logits: the logits after its last id are needed.
        scored_from, scored: index of the first id, and number of ids, whose logits give prompt logprobs.
        adapter: as in `SequenceStep`.
    """

    token_ids: list[int]
    start: int
    blocks: list[int]
    has_logits: bool
    scored_from: int = 0
    scored: int = 0
    adapter: int = 0


@dataclass(slots=True)
class RankStep:
    """Take part in a step."""

    rows: list[RankRow]


RankCommand = (
    RankPlan
    | JoinRanks
    | AllocateRank
    | RankCopies
    | ReadRankAdapter
    | LoadRankAdapter
    | DropRankAdapter
    | RankStep
    | Ping
    | Shutdown
)
RankAnswer = RankLoaded | RankSizes | RankAdapterRead | RankAdapterLoaded | Pong | CoreFailed
