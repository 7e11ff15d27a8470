"""The results of one step, as a core sends them; keys are those of `commands`."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace_engine.result_types import FinishReason
from headrace_engine.stat_types import CoreStat


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A sequence is in a step for the first time, with this many prompt tokens from the prefix cache.

    Attributes:
        host_tokens: number of these that came from the host tier.
    """

    key: int
    cached_tokens: int
    host_tokens: int = 0


@dataclass(frozen=True, slots=True)
class PromptPiece:
    """Prompt logprobs of consecutive tokens of a sequence.

    Attributes:
        position: index of the first token in the prompt, at least 1.
        logprobs: logprob of each token.
        top_ids: the most likely ids at the position of each token, flattened, equally many per token.
        top_logprobs: the logprob of each of them.
    """

    key: int
    position: int
    logprobs: list[float]
    top_ids: list[int] = field(default_factory=list)
    top_logprobs: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Drafts:
    """The drafted ids of one sequence in a step.

    Attributes:
        drafted: number of them.
        accepted: number of those that held.
    """

    key: int
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class PooledPiece:
    """The sum of last hidden states of consecutive prompt tokens of a sequence.

    Attributes:
        position: index of the first token in the prompt.
        end: index after the last.
        states: little-endian float64, of the hidden size.
    """

    key: int
    position: int
    end: int
    states: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """A sequence ended in the core. Its last token, if the step sampled one, is in the same StepOutput."""

    key: int
    reason: FinishReason
    error: str = ""


@dataclass(slots=True)
class CacheChange:
    """Blocks that came into the prefix cache, or left it.

    Attributes:
        stored: they came.
        host: the tier is host memory, and not the pool.
        keys: their keys, as `block_keys` makes them; of those that came, each is the parent of the next.
        parent: key of the block before the first that came; empty: that one begins a prompt.
    """

    stored: bool
    host: bool
    keys: list[bytes]
    parent: bytes = b""


@dataclass(slots=True)  # Frozen ones take twice as long to make, and there is one for every step.
class StepOutput:
    """The results of one step, for all sequences. Row i of keys, token_ids and logprobs is one new token.

    A sequence with drafted ids may have several tokens, in order.

    Attributes:
        logprobs: logprob of each token, NaN in rows that did not request it; empty if none did.
        top_counts: number of top logprobs of each token; empty if no row requested any.
        top_ids: their ids, one row after the other, most likely first.
        top_logprobs: the logprob of each of them.
        tensors: bytes of the vectors of each token, as `Sampled.tensors`; empty if no row requested them.
        prompts: prompt logprobs; those of a prompt are complete before its first token.
        pooled: sums of last hidden states; those of a prompt are complete before its first token.
        drafts: of the sequences that had any.
        scheduled: sequences that are in a step for the first time.
        preempted: sequences that were preempted for lack of blocks.
        searched: number of tokens of the beams of each running beam search in the step, by key of a sequence that waits
            for one of its texts.
        ended: sequences that the core ended.
        cache: what came into the prefix cache, and left it, in order.
        step_time: seconds since the step was scheduled, or since the one before finished, whichever is later.
        batch_size: number of sequences in the step.
    """

    keys: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_counts: list[int] = field(default_factory=list)
    top_ids: list[int] = field(default_factory=list)
    top_logprobs: list[float] = field(default_factory=list)
    tensors: list[bytes] = field(default_factory=list)
    prompts: list[PromptPiece] = field(default_factory=list)
    pooled: list[PooledPiece] = field(default_factory=list)
    drafts: list[Drafts] = field(default_factory=list)
    scheduled: list[Scheduled] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    searched: dict[int, int] = field(default_factory=dict)
    ended: list[Ended] = field(default_factory=list)
    cache: list[CacheChange] = field(default_factory=list)
    stat: CoreStat = field(default_factory=CoreStat)
    step_time: float = 0.0
    batch_size: int = 0
