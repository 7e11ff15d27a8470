"""From a StartRequest to a request that the core computes: everything that can be known to be wrong fails here."""

from __future__ import annotations

import asyncio
import math
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256

from headrace_engine.engine.config.field_checks import is_set
from headrace_engine.engine.config.generation import Generation, Limits, check_prompt, resolve
from headrace_engine.engine.config.logit_rules import rules_of
from headrace_engine.engine.config.logits_processors import check_processors
from headrace_engine.engine.models.model import Model
from headrace_engine.engine.models.prepare import Prepared
from headrace_engine.engine.models.state_errors import starting, why_not_running
from headrace_engine.engine.requests.awaited_starts import AwaitedStarts
from headrace_engine.engine.requests.forecast import check_deadline, work_of
from headrace_engine.engine.requests.overload import Arrival, check_queue, time_of_room
from headrace_engine.engine.requests.registry import RequestBook
from headrace_engine.engine.requests.request_size import brought
from headrace_engine.engine.requests.requests import Request
from headrace_engine.engine.requests.resume import check_delivered, check_handover
from headrace_engine.engine.requests.start_keys import Key
from headrace_engine.engine.requests.start_sequences import (
    NewSequences,
    asked_of,
    begin,
    message,
    new_sequences,
    prompt_log,
)
from headrace_engine.engine.results.budget import Need
from headrace_engine.engine.results.sequence import Luggage
from headrace_engine.engine.results.statistics import Clock, SequenceTimes
from headrace_engine.errors import FailedPrecondition, InvalidArgument, Unavailable, quoted
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.model_types import EffectiveConfig, ModelState
from headrace_engine.request_types import AcceptedRequest, Chat, ConfigWarning, StartRequest

MAX_REQUEST_ID = 128
"""Characters of a request_id."""

MAX_OWNER = 256
"""Characters of an owner's name: it is kept with every request and key."""


@dataclass(frozen=True, slots=True)
class _Prompt:
    ids: tuple[int, ...]
    warnings: tuple[ConfigWarning, ...]


class Admission:
    """Accepts requests into a book.

    Args:
        find_model: a model by its name, or NotFound.
        check_open: raises where no new request may be taken.
    """

    def __init__(
        self, book: RequestBook, find_model: Callable[[str], Model], check_open: Callable[[], None], clock: Clock
    ) -> None:
        self._book = book
        self._find_model = find_model
        self._check_open = check_open
        self._clock = clock
        self._awaited = AwaitedStarts()

    async def start(self, request: StartRequest) -> AcceptedRequest:
        """Accept a request; one with a request_id once, however often it is sent.

        Raises:
            AlreadyExists: its key was used with other content.
            HeadraceError: as `accept`.
        """
        _check_start(request)
        if not request.request_id:
            return await self.accept(request)
        key = Key(request.owner, request.request_id, request.handover)
        while (earlier := self._book.keys.begun(key, request.content)) is not None:
            if await self._awaited.left(earlier):
                continue
            return replace(await self._awaited.wait(earlier), joined=True)
        # A task of its own: a call that is cut leaves the start going for a while, so that its retry finds it.
        start = asyncio.create_task(self.accept(request))
        self._book.keys.begin(key, request.content, start)
        return await self._awaited.wait(start)

    async def accept(self, request: StartRequest) -> AcceptedRequest:
        """Validate a request, give it to the core, and answer what became of it.

        Raises:
            InvalidArgument: naming field, value and range.
            NotFound: UNKNOWN_MODEL.
            FailedPrecondition: MODEL_NOT_RUNNING.
            ResourceExhausted: QUEUE_FULL, RESULTS_FULL.
            DeadlineExceeded: DEADLINE_NOT_MET.
            Unavailable: DRAINING, CORE_RESTARTING, MODEL_STARTING.
        """
        _check_start(request)
        arrival = self._clock()
        model = self._find_model(request.model_name)
        prompt = await self._prompt(request, model, self._open(model))
        prepared = self._open(model)  # It may have been stopped while a long prompt was tokenised.
        effective = model.effective
        holes = prepared.holes
        limits = replace(_limits(effective, len(prompt.ids)), holes=holes)
        generation = resolve(request.config, effective.generation_defaults, limits, effective.config.default_seed)
        check_processors(generation.effective.logits_processors, effective)
        bad_words = await prepared.text.spell(generation.effective.bad_words, request.party)
        guided, suspicious = await prepared.guiding.check(generation.effective.response_format, request.party)
        decoding = await prepared.text.decoding(generation, prompt.ids, request.party)
        self._open(model)  # Words may be as many as a long prompt's, and grammars as large.
        rules = rules_of(generation.effective, bad_words, effective.vocab_size, holes)
        resumed = check_delivered(request, generation, effective.vocab_size, len(prompt.ids), holes)
        left = [len(one.delivered_ids) for one in resumed if not one.ended]
        ahead = check_queue(model, Arrival(request.party, generation.effective, len(left)))
        if left:
            work = work_of(generation, len(prompt.ids), min(left))
            check_deadline(model, generation.effective.deadline, self._clock() - arrival, work)
        times = partial(SequenceTimes, arrival, len(prompt.ids))
        asked = asked_of(generation, prepared)
        sequences = new_sequences(model, asked, decoding, generation, times, request, resumed)
        sequences.share(prompt_log(prompt.ids, generation, effective.vocab_size))
        warnings = (*prompt.warnings, *generation.warnings, *suspicious, *_not_applied(prepared, request.config))
        accepted = self._accepted(request, prompt, generation, warnings, ahead)
        self._reserve(request.owner, model, generation, len(prompt.ids), sequences)
        serial, leases = self._book.new_serial(), self._book.leases
        self._book.add(Request(request.owner, serial, model, accepted, sequences.shown, leases, sequences.contest))
        common = message(prompt.ids, generation, rules, guided)
        begin(model, sequences, generation, replace(common, owner=request.party))
        return accepted

    def _open(self, model: Model) -> Prepared:
        self._check_open()
        return _prepared(model)

    async def _prompt(self, request: StartRequest, model: Model, prepared: Prepared) -> _Prompt:
        asked, special = request.prompt, request.add_special_tokens
        vocab_size, max_length = model.effective.vocab_size, model.effective.config.max_length or 0
        if isinstance(asked, str | Chat):
            found = await prepared.text.tokenize(asked, special, max_length, request.party)
            ids = found.token_ids
            prepared.text.check_known(ids)
            check_prompt(ids, vocab_size, max_length, model.name)
            return _Prompt(tuple(ids), found.warnings)
        if special is not None:
            raise InvalidArgument.field("add_special_tokens", "is for text only; the prompt is ids")
        check_prompt(asked, vocab_size, max_length, model.name, prepared.holes)
        return _Prompt(tuple(asked), ())

    def _reserve(
        self, owner: str, model: Model, generation: Generation, prompt_length: int, sequences: NewSequences
    ) -> None:
        """Room for all that the request brings, and can bring."""
        limit, tenant = model.effective.config.max_result_bytes or 0, (owner, model.name)
        computed, prompt = sequences.computed, sequences.prompt
        own = brought(generation.effective, prompt_length, generation.max_new, len(computed))
        need = Need(generation.max_new, len(computed), computed[0].log.asked, count_field=sequences.count_field)
        need = replace(need, brought=own.bytes, brought_field=own.largest)
        if prompt is not None:
            need = replace(need, prompt_bytes=prompt.nbytes, prompt_tops=prompt.top_count)
        again = partial(time_of_room, model, self._book.of_owner(owner, model.name), self._clock())
        rooms = self._book.room.reserve(tenant, need, limit, again)
        luggage = Luggage(rooms.brought, len(computed), own.ended_bytes)
        for sequence, room in zip(computed, rooms.logs, strict=True):
            sequence.room, sequence.luggage = room, luggage
        if prompt is not None:
            prompt.room = rooms.prompt

    def _accepted(
        self,
        request: StartRequest,
        prompt: _Prompt,
        generation: Generation,
        warnings: tuple[ConfigWarning, ...],
        ahead: int,
    ) -> AcceptedRequest:
        return AcceptedRequest(
            handle=self._book.new_handle(),
            request_id=request.request_id or secrets.token_hex(16),
            model_name=request.model_name,
            effective_config=generation.effective,
            seed=generation.sampling.seed,
            prompt_token_count=len(prompt.ids),
            prompt_hash=_hash(prompt.ids),
            warnings=warnings,
            waiting_ahead=ahead,
            handover=request.handover,
        )


def _check_start(request: StartRequest) -> None:
    """Refuse what no model could accept."""
    check_handover(request)
    for name, limit in (("request_id", MAX_REQUEST_ID), ("owner", MAX_OWNER)):
        length = len(getattr(request, name))
        if length > limit:
            raise InvalidArgument.field(name, f"has {length} characters; allowed: at most {limit}")


def _prepared(model: Model) -> Prepared:
    if model.serving and model.prepared is not None:
        return model.prepared
    if model.state is ModelState.RUNNING:
        text = f"the core of model {quoted(model.name)} is being restarted"
        metadata = {"model_name": model.name}
        raise Unavailable(text, reason="CORE_RESTARTING", retry_after=1.0, metadata=metadata)
    if model.coming:
        raise starting(model.name, model.state)
    raise FailedPrecondition(
        f"model {quoted(model.name)} is {model.state}: {why_not_running(model.state, model.failure)}",
        reason="MODEL_NOT_RUNNING",
        state=model.state,
        metadata={"model_name": model.name},
    )


def _limits(effective: EffectiveConfig, prompt_length: int) -> Limits:
    config = effective.config
    return Limits(
        model_name=config.model_name,
        vocab_size=effective.vocab_size,
        max_length=config.max_length or 0,
        prompt_length=prompt_length,
        max_lease=config.max_lease or math.inf,
        caching=config.enable_prefix_cache is not False,
    )


def _not_applied(prepared: Prepared, sent: GenerationConfig) -> tuple[ConfigWarning, ...]:
    """What the model's own generation config asks in vain, and this request does not ask otherwise."""
    name_of = {warning: warning.field.removeprefix("config.") for warning in prepared.not_applied}
    return tuple(warning for warning, name in name_of.items() if not is_set(getattr(sent, name, None)))


def _hash(ids: tuple[int, ...]) -> str:
    return sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()
