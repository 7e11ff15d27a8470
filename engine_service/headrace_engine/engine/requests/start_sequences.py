"""Create the sequences of an accepted request, and send them to the core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from headrace_engine.engine.config.generation import Generation, has_candidates
from headrace_engine.engine.models.model import Model
from headrace_engine.engine.models.prepare import Prepared
from headrace_engine.engine.requests.request_size import payload_size
from headrace_engine.engine.requests.resume import read_delivered, reason_of_end, resumed_times
from headrace_engine.engine.results.best_of import BestOf, Candidate
from headrace_engine.engine.results.budget import Need, PayloadReservation, Reservation, Reservations
from headrace_engine.engine.results.prompt_log import PromptLog, prompt_log_bytes
from headrace_engine.engine.results.result_log import ResultLog
from headrace_engine.engine.results.sequence import Sequence
from headrace_engine.engine.results.statistics import SequenceTimes
from headrace_engine.engine.results.token_details import DetailOptions
from headrace_engine.engine.text.stopping import Decoder
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.ipc.commands import AddSequence
from headrace_engine.request_types import ResumedSequence, StartRequest


@dataclass(frozen=True, slots=True)
class Opening:
    """The initial state of a sequence.

    Attributes:
        resumed: the part of it that another engine delivered.
        decoder: decoder of its text, which has read that part.
    """

    resumed: ResumedSequence
    decoder: Decoder

    @property
    def open(self) -> bool:
        """True unless it has ended elsewhere: there are tokens to compute."""
        return not self.resumed.ended and self.decoder.stop is None


@dataclass(frozen=True, slots=True)
class NewSequences:
    """The sequences of a request.

    Attributes:
        shown: the sequences that readers see, by index.
        openings: the initial state of each of them.
        best_of: holds the candidates that are computed instead; None: the sequences themselves are computed.
    """

    shown: list[Sequence]
    openings: list[Opening]
    best_of: BestOf | None = None

    @property
    def computed(self) -> list[Sequence]:
        """Sequences that the core computes, by their index there."""
        return self.shown if self.best_of is None else self.best_of.candidates


def detail_options(generation: Generation, prepared: Prepared) -> DetailOptions:
    """Return the details that readers receive of each token."""
    config, spec = generation.effective, prepared.files.spec
    top_count = min(config.top_logprobs or 0, spec.vocab_size)
    return DetailOptions(
        bool(config.logprobs), top_count, spec.hidden_size * bool(config.enable_tensors_from_model_inference)
    )


def open_sequences(
    decoding: Callable[[], Decoder], request: StartRequest, resumed: list[ResumedSequence]
) -> list[Opening]:
    """Return the initial state of each sequence, its decoder past the delivered ids.

    Args:
        decoding: creates a decoder.

    Raises:
        InvalidArgument: the delivered ids continue after a stop.
    """
    found = [Opening(one, decoding()) for one in resumed]
    for opening in found:
        read_delivered(opening.decoder, opening.resumed, request)
    return found


def prompt_tops(generation: Generation, vocab_size: int) -> int | None:
    """Return the number of top ids per token of the prompt logprobs; None: the config does not request these."""
    count = generation.effective.prompt_logprobs
    return None if count is None else min(count, vocab_size)


@dataclass(frozen=True, slots=True)
class SequencePlan:
    """The properties that the sequences of a request are created from.

    Attributes:
        options: the details that readers receive of each token.
        openings: the initial state of each sequence that readers see.
        decoding: creates a decoder.
        new_times: creates the times of a sequence that begins here.
    """

    request: StartRequest
    config: GenerationConfig
    options: DetailOptions
    openings: list[Opening]
    decoding: Callable[[], Decoder]
    new_times: Callable[[], SequenceTimes]

    @property
    def selects(self) -> bool:
        """True if candidates are computed instead of the sequences that readers see."""
        return has_candidates(self.config) and any(opening.open for opening in self.openings)

    @property
    def computed_options(self) -> DetailOptions:
        """Details that are kept of each computed token: candidates are ranked by their logprobs."""
        return replace(self.options, logprobs=True) if self.selects else self.options

    @property
    def count(self) -> int:
        """Number of sequences that are computed."""
        return self.config.best_of or 1 if self.selects else len(self.openings)

    @property
    def count_field(self) -> str:
        """Field of the config that sets this number."""
        return "best_of" if self.selects else "n"


def need_of(plan: SequencePlan, generation: Generation, prompt_length: int, tops: int | None, vector: int) -> Need:
    """Return the maximum size of a request's results and payload, with the bytes of a pooled vector."""
    payload = payload_size(generation.effective, prompt_length, generation.max_new, plan.count)
    need = Need(
        generation.max_new,
        plan.count,
        plan.computed_options,
        count_field=plan.count_field,
        payload=payload.bytes + vector,
        payload_ended=payload.ended_bytes + vector,
        payload_field=payload.largest,
    )
    return need if tops is None else replace(need, prompt_bytes=prompt_log_bytes(prompt_length, tops), prompt_tops=tops)


def new_sequences(model: Model, plan: SequencePlan, prompt: PromptLog | None, reserved: Reservations) -> NewSequences:
    """Create the sequences of a request. They own its reservations from here on."""
    if not plan.selects:
        pairs = zip(plan.openings, reserved.logs, strict=True)
        owned = [_shown(model, plan, one, prompt, log, reserved.payload) for one, log in pairs]
        return NewSequences(owned, plan.openings)
    shown = [_shown(model, plan, opening, prompt) for opening in plan.openings]
    best_of = BestOf(shown, 1.0 if plan.config.length_penalty is None else plan.config.length_penalty)
    for index, reservation in enumerate(reserved.logs):
        key, log = model.outputs.new_key(), ResultLog(plan.computed_options)
        decoder, times = plan.decoding(), plan.new_times()
        best_of.add(Candidate(index, key, log, decoder, times, best_of, prompt, reservation, reserved.payload))
    return NewSequences(shown, plan.openings, best_of)


def _shown(
    model: Model,
    plan: SequencePlan,
    opening: Opening,
    prompt: PromptLog | None,
    reservation: Reservation | None = None,
    payload: PayloadReservation | None = None,
) -> Sequence:
    """Create a sequence that readers see, with its delivered ids in its log."""
    one = opening.resumed
    return Sequence(
        one.index,
        model.outputs.new_key(),
        ResultLog(plan.options, delivered=one.delivered_ids),
        opening.decoder,
        resumed_times(plan.new_times(), plan.request, one),
        prompt=prompt,
        reservation=reservation,
        payload=payload,
    )


def begin(model: Model, sequences: NewSequences, generation: Generation, common: AddSequence) -> None:
    """Send the sequences that have not ended elsewhere to the core, all with one prompt."""
    left = [opening.resumed for opening in sequences.openings if opening.open]
    for sequence, opening in zip(sequences.shown, sequences.openings, strict=True):
        if not opening.open:
            reason = reason_of_end(opening.resumed, generation, opening.decoder.stop)
            sequence.finish(reason, sequence.times.arrival)
    delivered = {one.index: tuple(one.delivered_ids) for one in left} if sequences.best_of is None else {}
    running = [each for each in sequences.computed if each.log.end is None]
    if not running:
        return
    common = replace(common, group=running[0].key if len(running) > 1 else 0)
    # Candidates start again, whatever was delivered of the best: with their seed they come to the same tokens.
    generated = [delivered.get(each.index, ()) for each in running]
    pairs = zip(running, generated, strict=True)
    model.core.add({each: replace(common, key=each.key, index=each.index, generated=ids) for each, ids in pairs})
