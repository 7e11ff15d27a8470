"""From a StartRequest to a request that the core computes: every error that can be detected up front is raised here."""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256

from headrace_engine.engine.models.model import Model
from headrace_engine.engine.models.prepare import Prepared
from headrace_engine.engine.models.state_errors import core_restarting, starting, why_not_running
from headrace_engine.engine.requests.awaited_starts import AwaitedStarts
from headrace_engine.engine.requests.core_command import common_command
from headrace_engine.engine.requests.forecast import check_deadline, work_of
from headrace_engine.engine.requests.overload import Arrival, check_fits, check_queue, time_to_budget
from headrace_engine.engine.requests.owner_limits import OwnerLimitCheck
from headrace_engine.engine.requests.registry import RequestRegistry
from headrace_engine.engine.requests.requests import Request
from headrace_engine.engine.requests.resolution import Resolved, Start, check_start, resolve_config, tokenize
from headrace_engine.engine.requests.start_keys import Key
from headrace_engine.engine.requests.start_sequences import (
    SequencePlan,
    begin,
    need_of,
    new_sequences,
    open_sequences,
    prompt_tops,
)
from headrace_engine.engine.results.budget import Need, Reservations
from headrace_engine.engine.results.pooled_states import PooledStates
from headrace_engine.engine.results.prompt_log import PromptLog
from headrace_engine.engine.results.statistics import Clock, SequenceTimes
from headrace_engine.engine.results.usage import Usage
from headrace_engine.errors import FailedPrecondition, quoted
from headrace_engine.model_types import ModelState
from headrace_engine.request_types import AcceptedRequest, Pooling, StartRequest
from headrace_engine.result_types import FinishReason

_NUMBER = 8
"""Bytes of a number of a pooled vector."""


@dataclass(frozen=True, slots=True)
class _Reserved:
    """The reservations of a start.

    Attributes:
        ahead: number of sequences that are served before its own.
        tops: number of top ids per token of the prompt logprobs; None: these are not requested.
    """

    ahead: int
    plan: SequencePlan
    tops: int | None
    bytes: Reservations


class Admission:
    """Accepts requests into a registry of requests.

    Args:
        find_model: returns a model by its name, or raises NotFound.
        check_open: raises if no new requests are accepted.
        usage: returns what an owner uses.
    """

    def __init__(
        self,
        registry: RequestRegistry,
        find_model: Callable[[str], Model],
        check_open: Callable[[], None],
        usage: Callable[[str], Usage],
        clock: Clock,
    ) -> None:
        self._registry = registry
        self._find_model = find_model
        self._check_open = check_open
        self._usage = usage
        self._clock = clock
        self._awaited = AwaitedStarts()

    async def start(self, request: StartRequest) -> AcceptedRequest:
        """Accept a request; one with a request_id only once, however often it is sent.

        Raises:
            AlreadyExists: its key was used with other content.
            HeadraceError: as `accept`.
        """
        check_start(request)
        if not request.request_id:
            return await self.accept(request)
        key = Key(request.owner, request.request_id, request.handover)
        while (earlier := self._registry.keys.begun(key, request.content)) is not None:
            if await self._awaited.left(earlier):
                continue
            return replace(await self._awaited.wait(earlier), joined=True)
        # A separate task, owned by `keys`: if the call is cut, it continues for a while, so that a retry finds it.
        start = asyncio.create_task(self.accept(request))
        self._registry.keys.begin(key, request.content, start)
        return await self._awaited.wait(start)

    async def accept(self, request: StartRequest) -> AcceptedRequest:
        """Validate a request, send it to the core, and return its handle and effective config.

        Raises:
            InvalidArgument: naming field, value and range.
            NotFound: UNKNOWN_MODEL, UNKNOWN_LORA.
            FailedPrecondition: MODEL_NOT_RUNNING.
            ResourceExhausted: QUEUE_FULL, RESULTS_FULL.
            DeadlineExceeded: DEADLINE_NOT_MET.
            Unavailable: DRAINING, CORE_RESTARTING, MODEL_STARTING.
        """
        start, resolved = await self._resolved(request)
        reserved = self._reserve(start, resolved, self._open(start.model))
        return self._enqueue(start, resolved, reserved)

    async def validate(self, request: StartRequest) -> None:
        """Validate a request, whatever the load, and leave it at that.

        Raises:
            InvalidArgument, NotFound, FailedPrecondition, Unavailable: as `accept`.
        """
        start, resolved = await self._resolved(request)
        check_fits(start.model, _arrival(start, resolved))
        _, _, need = self._needed(start, resolved, self._open(start.model))
        limit = start.model.effective.config.max_result_bytes or 0
        if need.bytes > limit:
            raise need.refusal(limit)

    async def _resolved(self, request: StartRequest) -> tuple[Start, Resolved]:
        """Return a start whose prompt is tokenized, and its config. Nothing is reserved yet."""
        check_start(request)
        start = Start(request, self._find_model(request.model_name), self._clock())
        prompt = await tokenize(start, self._open(start.model))
        # Long prompts, many words and large grammars take long: the model may have been stopped in the meantime.
        return start, await resolve_config(start, self._open(start.model), prompt)

    def _open(self, model: Model) -> Prepared:
        self._check_open()
        return _prepared(model)

    def _reserve(self, start: Start, resolved: Resolved, prepared: Prepared) -> _Reserved:
        """Check queue and deadline, and reserve the maximum bytes of the results and the request's payload."""
        model, generation, length = start.model, resolved.generation, len(resolved.prompt.ids)
        arrival = _arrival(start, resolved)
        check_fits(model, arrival)
        ahead = check_queue(model, arrival)
        if resolved.left:
            work = work_of(generation, length, min(len(one.delivered_ids) for one in resolved.left))
            check_deadline(model, generation.effective.deadline, self._clock() - start.arrival, work)
        plan, tops, need = self._needed(start, resolved, prepared)
        self._check_owner(start, need, arrival.count)
        reserved = self._registry.budget.reserve(
            (start.request.owner, model.name),
            need,
            model.effective.config.max_result_bytes or 0,
            partial(time_to_budget, model, self._registry.of_owner(start.request.owner, model.name), self._clock()),
        )
        return _Reserved(ahead, plan, tops, reserved)

    def _needed(self, start: Start, resolved: Resolved, prepared: Prepared) -> tuple[SequencePlan, int | None, Need]:
        """Return the sequences of a start, the top ids of its prompt logprobs, and what both need at most."""
        request, generation, length = start.request, resolved.generation, len(resolved.prompt.ids)
        openings = open_sequences(resolved.decoding, request, resolved.resumed)
        times = partial(SequenceTimes, start.arrival, length, owner=request.owner, trace=request.trace)
        plan = SequencePlan(request, generation.effective, resolved.options, openings, resolved.decoding, times)
        tops = prompt_tops(generation, start.model.effective.vocab_size)
        vector = 0 if request.pooling is None else _NUMBER * prepared.files.spec.hidden_size
        return plan, tops, need_of(plan, generation, length, tops, vector)

    def _check_owner(self, start: Start, need: Need, sequences: int) -> None:
        """Refuse a request beyond the limits of its owner."""
        limits, owner, model = start.request.limits, start.request.owner, start.model
        if limits is not None:
            mine = self._registry.of_owner(owner, model.name)
            OwnerLimitCheck(limits, self._usage(owner), model, mine, self._clock()).check(need, sequences)

    def _enqueue(self, start: Start, resolved: Resolved, reserved: _Reserved) -> AcceptedRequest:
        """Have the core compute the request's sequences, and register it. They own the reservations from then on."""
        model, generation, owner = start.model, resolved.generation, start.request.owner
        request = None
        try:
            accepted = self._accepted(start.request, resolved, reserved.ahead)
            kept = resolved.prompt.answer.kept
            common = common_command(resolved.prompt.ids, generation, resolved.rules, resolved.guided, kept)
            if generation.effective.lora_name:  # It may have been unloaded in the meantime.
                adapter = model.adapters.use(generation.effective.lora_name)
                accepted = replace(accepted, adapter_digest=adapter.digest)
                common = replace(common, adapter=adapter.plan.number, adapter_digest=adapter.digest)
            prompt = None
            if reserved.tops is not None:
                prompt = PromptLog(resolved.prompt.ids, reserved.tops, reserved.bytes.prompt)
            sequences = new_sequences(model, reserved.plan, prompt, reserved.bytes)
            if start.request.pooling is not None:
                length = len(resolved.prompt.ids)
                first = 0 if start.request.pooling is Pooling.MEAN else length - 1
                sequences.shown[0].states = PooledStates(first, length)
                common = replace(common, pooled=first)
            serial, leases = self._registry.new_serial(), self._registry.leases
            request = Request(owner, serial, model, accepted, sequences.shown, leases, sequences.best_of)
            begin(model, sequences, generation, replace(common, owner=start.request.party))
            self._registry.add(request)
            if not start.request.handover:  # Its first engine has counted the prompt.
                with self._registry.budget.counts.changing(owner) as counted:
                    counted.prompt_tokens += len(resolved.prompt.ids)
        except BaseException:
            if request is not None:
                request.end(FinishReason.STOPPED)  # The core may have got some of its sequences.
            reserved.bytes.give_back()
            raise
        return accepted

    def _accepted(self, request: StartRequest, resolved: Resolved, ahead: int) -> AcceptedRequest:
        return AcceptedRequest(
            handle=self._registry.new_handle(),
            request_id=request.request_id or secrets.token_hex(16),
            model_name=request.model_name,
            effective_config=resolved.generation.effective,
            seed=resolved.generation.sampling.seed,
            prompt_token_count=len(resolved.prompt.ids),
            prompt_hash=_hash(resolved.prompt.ids),
            warnings=resolved.warnings,
            waiting_ahead=ahead,
            handover=request.handover,
            answer_format=resolved.prompt.answer.format,
        )


def _arrival(start: Start, resolved: Resolved) -> Arrival:
    return Arrival(start.request.party, resolved.generation, len(resolved.prompt.ids), len(resolved.left))


def _prepared(model: Model) -> Prepared:
    if model.serving and model.prepared is not None:
        return model.prepared
    if model.state is ModelState.RUNNING:
        raise core_restarting(model.name)
    if model.coming:
        raise starting(model.name, model.state)
    raise FailedPrecondition(
        f"model {quoted(model.name)} is {model.state}: {why_not_running(model.state, model.failure)}",
        reason="MODEL_NOT_RUNNING",
        state=model.state,
        metadata={"model_name": model.name},
    )


def _hash(ids: tuple[int, ...]) -> str:
    return sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()
