"""A runner without a model.

The simulated runner stores ids in a paged pool and samples each token as a hash of the whole context that it reads back
through the block table. A wrong table, a stale block or a missing chunk gives other tokens than `expected`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from headrace_engine.config import ComputeDtype, ComputeUnit, ModelFormat
from headrace_engine.core.row_fields import PromptLogprobs
from headrace_engine.core.runner import BlockCopies, Candidate, Progress, Runner, Sampled, SequenceStep
from headrace_engine.core.scheduling.logit_state import LogitState
from headrace_engine.guided.vocabulary import Vocabulary
from headrace_engine.ipc.commands import AddSequence
from headrace_engine.ipc.messages import RunnerSizes
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.model_types import ModelPhase
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.tokenizer import load_tokenizer
from headrace_engine.sampling_params import SamplingParams

from support.models.tiny_models import make_tiny_llama

VOCABULARY = 1000
GREEDY = SamplingParams(temperature=0)
_POISON = -1


class ContractBroken(BaseException):
    """The core broke the runner's interface. Not an Exception: the core must not take it for a failed step."""


def draw(
    context: Sequence[int],
    sampling: SamplingParams,
    position: int,
    index: int,
    masked: Sequence[int],
    allowed: array[int] | None = None,
) -> int | None:
    """Return the id after a context: any function of all of it, if nearly every change changes the result."""
    noise = () if sampling.temperature == 0 else (sampling.seed, position, index)
    content = array("q", (*context, *noise)).tobytes()
    first = int.from_bytes(blake2b(content, digest_size=8).digest(), "little") % VOCABULARY
    forbidden = set(masked)
    if allowed is not None:
        forbidden.update(token for token in range(VOCABULARY) if not _has(allowed, token))
    candidates = ((first + i) % VOCABULARY for i in range(VOCABULARY))
    return next((token for token in candidates if token not in forbidden), None)


def _has(mask: array[int], token: int) -> bool:
    return token // 32 < len(mask) and bool(mask[token // 32] >> token % 32 & 1)


def score(context: Sequence[int], token: int) -> float:
    """Return the log-probability of an id after a context."""
    content = array("q", (*context, token)).tobytes()
    return -float(int.from_bytes(blake2b(content, digest_size=3).digest(), "little"))


def best(
    context: Sequence[int], count: int, masked: Sequence[int] = (), allowed: array[int] | None = None
) -> list[Candidate]:
    """Return the most likely ids after a context: a few of them, which any change of the context changes."""
    start = draw(context, GREEDY, 0, 0, ()) or 0
    some = ((start + 7 * i) % VOCABULARY for i in range(3 * count + len(masked)))
    scored = [(token, score(context, token) / 2**20, score(context, token) / 2**20) for token in some]
    forbidden = set(masked)
    left = [each for each in scored if each[0] not in forbidden and (allowed is None or _has(allowed, each[0]))]
    return sorted(left, key=lambda each: (-each[1], each[0]))[:count]


def vectors(context: Sequence[int]) -> bytes:
    """Return the vectors of the token after a context."""
    return blake2b(array("q", context).tobytes()).digest()


def state_sum(ids: Sequence[int], first: int, end: int) -> float:
    """Return the sum of the last hidden states, each a single number, of some tokens of a sequence."""
    return float(sum((ids[place] + 1) * (place + 1) for place in range(first, end)))


def expected_scores(prompt: Sequence[int], top: int) -> list[tuple[float, list[int]]]:
    """Return the log-probability of each prompt token but the first, and the most likely ids at its position."""
    return [(score(prompt[:place], token), [token + i for i in range(top)]) for place, token in enumerate(prompt)][1:]


def expected(request: AddSequence, count: int | None = None) -> list[int]:
    """Return the ids of a sequence, its initial ids included, up to a number of tokens, an EOS id or a stop."""
    ids = list(request.generated)
    guide = tiny_vocabulary().guide(request.grammar, request.eos_ids) if request.grammar else None
    if guide is not None:
        guide.take(ids)
    while len(ids) < (request.max_new if count is None else count):
        position = len(ids)
        masked = request.eos_ids if position < request.min_new else ()
        if request.rules is not None:
            state = LogitState(request.rules, len(request.prompt))
            masked = (*masked, *state.follow((*request.prompt, *ids)))
        allowed = None if guide is None else guide.allowed
        token = draw((*request.prompt, *ids), request.sampling, position, request.index, masked, allowed)
        if token is None:
            break
        ids.append(token)
        if token in request.eos_ids or (token in request.stop_ids and position >= request.min_new):
            break
        if guide is not None:
            guide.take([token])
    return ids


def make_plan(**changes: Any) -> CorePlan:
    """Return a plan with small sizes."""
    sizes = {"max_batch": 8, "max_length": 64, "max_prefill_tokens": 32, "block_size": 4, "num_blocks": 64}
    return CorePlan(**{"path": "simulated", "format": ModelFormat.HF, **sizes, **changes})


class SimulatedRunner(Runner):
    """Observes the plan's sizes, and checks that every step satisfies the interface's contract.

    Attributes:
        raises: returns which rows make the whole step raise.
        spoils: returns which rows get keys and values that are not finite; later rows that read them get an error.
        batches: (start, tokens) of each row of each step since the warm-up.
        seen: every id computed since the warm-up.
        copied: all copies since the warm-up.
        fails_to_copy: copies raise.
        cost: returns the seconds that a step takes.
        spent: seconds that all steps have taken.
    """

    cost: Callable[[Sequence[SequenceStep]], float] = staticmethod(lambda steps: 0.0)

    def __init__(self, plan: CorePlan) -> None:
        self.plan = plan
        self.raises: Callable[[SequenceStep], bool] = lambda step: False
        self.spoils: Callable[[SequenceStep], bool] = lambda step: False
        self.batches: list[list[tuple[int, int]]] = []
        self.seen: set[int] = set()
        self.closed = False
        self.copied: list[BlockCopies] = []
        self.fails_to_copy = False
        self.spent = 0.0
        self._pool: dict[tuple[int, int], tuple[int, int]] = {}
        self._host: dict[tuple[int, int], tuple[int, int]] = {}
        self._tables: dict[int, tuple[Sequence[int], tuple[int, ...]]] = {}

    def load(self, progress: Progress) -> None:
        progress(ModelPhase.LOADING, 1, 2)
        progress(ModelPhase.LOADING, 2, 2)

    def size(self) -> RunnerSizes:
        plan = self.plan
        return RunnerSizes(
            ("simulated",),
            ComputeDtype.FLOAT32,
            ComputeUnit.CPU,
            1,
            plan.max_length,
            plan.num_blocks,
            1,
            2,
            3,
            plan.num_host_blocks,
            4 * plan.num_host_blocks,
        )

    def allocate(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        self._num_blocks, self._num_host_blocks = num_blocks, num_host_blocks

    def copy_blocks(self, copies: BlockCopies) -> None:
        self._check_copies(copies)
        self.copied.append(copies)
        if self.fails_to_copy:
            raise RuntimeError("simulated fault")
        self._host = self._moved(self._pool, self._host, copies.to_host)
        for pair in copies.within:
            self._pool = self._moved(self._pool, self._pool, [pair])
        self._pool = self._moved(self._host, self._pool, copies.to_pool)

    def close(self) -> None:
        self.closed = True

    def run(self, steps: Sequence[SequenceStep]) -> list[Sampled]:
        self._check_step(steps)
        self.spent += self.cost(steps)
        self.batches.append([(step.start, len(step.token_ids)) for step in steps])
        if any(self.raises(step) for step in steps):
            raise RuntimeError("simulated fault")
        for step in steps:
            self._write(step)
        return [self._answer(step) for step in steps if step.has_result]

    def forget_warm_up(self) -> None:
        """Reset what was recorded."""
        self.batches.clear()
        self.seen.clear()
        self.copied.clear()
        self._pool.clear()
        self._host.clear()

    def _moved(
        self,
        source: dict[tuple[int, int], tuple[int, int]],
        target: dict[tuple[int, int], tuple[int, int]],
        pairs: Sequence[tuple[int, int]],
    ) -> dict[tuple[int, int], tuple[int, int]]:
        """Return the target with blocks copied from the source, as all of them were before any was copied."""
        moved = dict(target)
        for origin, place in pairs:
            for offset in range(self.plan.block_size):
                moved[place, offset] = source.get((origin, offset), (-1, -2))
        return moved

    def _write(self, step: SequenceStep) -> None:
        spoilt = self.spoils(step)
        for offset, token in enumerate(step.token_ids):
            position = step.start + offset
            self.seen.add(token)
            self._pool[self._slot(step, position)] = (position, _POISON if spoilt else token)

    def _answer(self, step: SequenceStep) -> Sampled:
        context = self._context(step)
        if _POISON in context:
            return Sampled(None, error="logits are not finite")
        drawn = Sampled(None) if step.sampling is None else self._draw(step, step.sampling, context)
        tensors = vectors(context) if step.tensors else b""
        pooled = b""
        if step.pooled is not None:
            pooled = array("d", [state_sum(context, step.start + step.pooled, len(context))]).tobytes()
        return replace(drawn, prompt_logprobs=self._prompt_logprobs(step, context), tensors=tensors, pooled=pooled)

    def _context(self, step: SequenceStep) -> list[int]:
        """Return the ids of a sequence as stored in the pool."""
        context: list[int] = []
        for position in range(step.start + len(step.token_ids)):
            stored, token = self._pool.get(self._slot(step, position), (-1, -2))
            context.append(token if stored == position or token == _POISON else -3)
        return context

    def _prompt_logprobs(self, step: SequenceStep, context: list[int]) -> PromptLogprobs | None:
        if step.prompt_logprobs is None:
            return None
        begin, ids = step.start + step.prompt_logprobs.first + 1, step.prompt_logprobs.ids
        tops = [token + i for token in ids for i in range(step.prompt_logprobs.top)]
        scores = [score(context[: begin + place], token) for place, token in enumerate(ids)]
        return PromptLogprobs(scores, tops, [-0.5] * len(tops))

    def _draw(self, step: SequenceStep, sampling: SamplingParams, context: list[int]) -> Sampled:
        allowed = None if step.changes is None else step.changes.allowed
        if step.candidates:
            return Sampled(None, candidates=best(context, step.candidates, step.masked_ids, allowed))
        if sampling.top_logprobs and sampling.temperature == 0 and not sampling.logprobs:
            found = best(context, sampling.top_logprobs)
            return Sampled(found[0][0], top=[(token, value) for token, _, value in found])
        token_id = draw(context, sampling, step.position, step.index, step.masked_ids, allowed)
        if token_id is None or not sampling.logprobs:
            return Sampled(token_id)
        top = [(token_id + i, -1.0 - i) for i in range(sampling.top_logprobs)]
        return Sampled(token_id, -float(token_id), top=top)

    def _slot(self, step: SequenceStep, position: int) -> tuple[int, int]:
        return step.blocks[position // self.plan.block_size], position % self.plan.block_size

    def _check_step(self, steps: Sequence[SequenceStep]) -> None:
        _require(0 < len(steps) <= self.plan.max_rows, f"{len(steps)} rows")
        tokens = sum(len(step.token_ids) for step in steps)
        _require(tokens <= self.plan.max_prefill_tokens, f"{tokens} tokens in a step")
        writers: dict[tuple[int, int], int] = {}
        for row, step in enumerate(steps):
            end = step.start + len(step.token_ids)
            _require(bool(step.token_ids), "a row without tokens")
            _require(end < self.plan.max_length, f"a row ends at {end}")
            _require(len(step.blocks) * self.plan.block_size >= end, "a table too short")
            before = self._tables.get(id(step.blocks), (step.blocks, ()))[1]
            _require(tuple(step.blocks[: len(before)]) == before, "a table that did not only grow")
            self._tables[id(step.blocks)] = step.blocks, tuple(step.blocks)
            asked = step.prompt_logprobs
            last = 0 if asked is None else asked.first + len(asked.ids)
            _require(asked is None or 0 <= asked.first < last <= len(step.token_ids), "bad prompt_logprobs")
            _require(step.pooled is None or 0 <= step.pooled < len(step.token_ids), "bad pooling")
            _require(len(set(step.blocks)) == len(step.blocks), "a block twice in a table")
            _require(all(0 <= block < self._num_blocks for block in step.blocks), "a block outside the pool")
            for position in range(step.start, end):
                _require(writers.setdefault(self._slot(step, position), row) == row, "two rows write to one slot")
        for row, step in enumerate(steps):
            read = {writers.get(self._slot(step, position), row) for position in range(step.start)} - {row}
            continued = all(other < row and steps[other].blocks == step.blocks for other in read)
            _require(continued, "a row reads what another sequence writes")

    def _check_copies(self, copies: BlockCopies) -> None:
        _require(bool(copies), "a call that copies nothing")
        sides = [*zip(*copies.to_host, strict=True)] or [(), ()], [*zip(*copies.to_pool, strict=True)] or [(), ()]
        (left, kept), (fetched, entered) = sides
        for blocks in (left, kept, fetched, entered):
            _require(len(set(blocks)) == len(blocks), "a block twice in a list of copies")
        inner = [block for pair in copies.within for block in pair]
        _require(all(0 <= block < self._num_blocks for block in (*left, *inner, *entered)), "a block outside the pool")
        _require(all(0 <= block < self._num_host_blocks for block in (*kept, *fetched)), "a block outside the tier")


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ContractBroken(what)


@cache
def tiny_vocabulary() -> Vocabulary:
    """Return a vocabulary for guides with the ids of tiny models."""
    with TemporaryDirectory() as folder:
        files = open_model(str(make_tiny_llama(Path(folder) / "tiny")))
        return Vocabulary(load_tokenizer(files), files.spec.vocab_size)
