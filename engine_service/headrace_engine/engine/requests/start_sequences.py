"""The sequences of a request that was accepted: made, and given to the core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from headrace_engine.commands import AddSequence
from headrace_engine.engine.config.generation import Generation, has_candidates
from headrace_engine.engine.formats.frames import Verdict
from headrace_engine.engine.models.model import Model
from headrace_engine.engine.models.prepare import Prepared
from headrace_engine.engine.requests.resume import read_delivered, reason_of_end, resumed_times
from headrace_engine.engine.results.best_of import BestOf, Candidate
from headrace_engine.engine.results.budget import PayloadReservation, Reservation, Reservations
from headrace_engine.engine.results.prompt_log import PromptLog
from headrace_engine.engine.results.result_log import ResultLog
from headrace_engine.engine.results.sequence import Sequence
from headrace_engine.engine.results.statistics import SequenceTimes
from headrace_engine.engine.results.token_details import DetailOptions
from headrace_engine.engine.text.stopping import Decoder
from headrace_engine.generation_config import GenerationConfig, InterruptPolicy
from headrace_engine.request_types import ResumedSequence, StartRequest
from headrace_engine.sampling_params import LogitRules


@dataclass(frozen=True, slots=True)
class Opening:
    """What a sequence begins with.

    Attributes:
        resumed: what another engine delivered of it.
        decoder: of its text, which has read that.
    """

    resumed: ResumedSequence
    decoder: Decoder

    @property
    def open(self) -> bool:
        """It has not ended elsewhere: something is left to compute."""
        return not self.resumed.ended and self.decoder.stop is None


@dataclass(frozen=True, slots=True)
class NewSequences:
    """The sequences of a request.

    Attributes:
        shown: what readers read, by index.
        openings: what each of them begins with.
        best_of: whose candidates are computed instead; None: they are computed themselves.
    """

    shown: list[Sequence]
    openings: list[Opening]
    best_of: BestOf | None = None

    @property
    def computed(self) -> list[Sequence]:
        """What the core computes, by its index there."""
        return self.shown if self.best_of is None else self.best_of.candidates


def detail_options(generation: Generation, prepared: Prepared) -> DetailOptions:
    """Return which details readers get of each token."""
    config, spec = generation.effective, prepared.files.spec
    top_count = min(config.top_logprobs or 0, spec.vocab_size)
    return DetailOptions(
        bool(config.logprobs), top_count, spec.hidden_size * bool(config.enable_tensors_from_model_inference)
    )


def open_sequences(
    decoding: Callable[[], Decoder], request: StartRequest, resumed: list[ResumedSequence]
) -> list[Opening]:
    """Return what each sequence begins with, with what was delivered of it read.

    Args:
        decoding: makes a decoder.

    Raises:
        InvalidArgument: ids were delivered that go on after a stop.
    """
    found = [Opening(one, decoding()) for one in resumed]
    for opening in found:
        read_delivered(opening.decoder, opening.resumed, request)
    return found


def prompt_tops(generation: Generation, vocab_size: int) -> int | None:
    """Return how many most likely ids come with each token of the prompt; None: the config does not ask for its log."""
    count = generation.effective.prompt_logprobs
    return None if count is None else min(count, vocab_size)


@dataclass(frozen=True, slots=True)
class SequencePlan:
    """What the sequences of a request are made of.

    Attributes:
        options: the details that readers get of each token.
        openings: what each sequence that readers see begins with.
        decoding: makes a decoder.
        new_times: makes the times of a sequence that begins here.
    """

    request: StartRequest
    config: GenerationConfig
    options: DetailOptions
    openings: list[Opening]
    decoding: Callable[[], Decoder]
    new_times: Callable[[], SequenceTimes]

    @property
    def selects(self) -> bool:
        """Candidates are computed instead of the sequences that readers see."""
        return has_candidates(self.config) and any(opening.open for opening in self.openings)

    @property
    def computed_options(self) -> DetailOptions:
        """The details that are kept of each token that is computed: candidates are ranked by log-probabilities."""
        return replace(self.options, logprobs=True) if self.selects else self.options

    @property
    def count(self) -> int:
        """How many sequences are computed."""
        return self.config.best_of or 1 if self.selects else len(self.openings)

    @property
    def count_field(self) -> str:
        """Field of the config that says how many are computed."""
        return "best_of" if self.selects else "n"


def new_sequences(model: Model, plan: SequencePlan, prompt: PromptLog | None, reserved: Reservations) -> NewSequences:
    """Make the sequences of a request, which own what is reserved for it from here on."""
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
    """Make a sequence that readers see, with what was delivered of it in its log."""
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


def message(prompt: tuple[int, ...], generation: Generation, rules: LogitRules | None, guided: Verdict) -> AddSequence:
    """Return what all sequences of a request have in common."""
    config = generation.effective
    return AddSequence(
        key=0,
        prompt=prompt,
        sampling=generation.sampling,
        max_new=generation.max_new,
        eos_ids=generation.eos_ids,
        stop_ids=config.stop_token_ids,
        min_new=generation.min_new,
        rules=rules,
        processors=config.logits_processors,
        grammar=guided.grammar,
        grammar_bytes=guided.size,
        grammar_seconds=guided.seconds,
        priority=config.priority or 0,
        use_prefix_cache=config.use_prefix_cache is not False,
        cache_salt=config.cache_salt or "",
        interrupt_policy=config.interrupt_policy or InterruptPolicy.RESUME,
        prompt_logprobs=config.prompt_logprobs,
        tensors=bool(config.enable_tensors_from_model_inference),
    )


def begin(model: Model, sequences: NewSequences, generation: Generation, common: AddSequence) -> None:
    """Give the core what has not ended elsewhere, all from one prompt."""
    left = [opening.resumed for opening in sequences.openings if opening.open]
    for sequence, opening in zip(sequences.shown, sequences.openings, strict=True):
        if not opening.open:
            reason = reason_of_end(opening.resumed, generation, opening.decoder.stop)
            sequence.finish(reason, sequence.times.arrival)
    delivered = {one.index: tuple(one.delivered_ids) for one in left} if sequences.best_of is None else {}
    running = [each for each in sequences.computed if each.log.end is None]
    group = running[0].key if len(running) > 1 else 0
    for sequence in running:
        # Candidates start again, whatever was delivered of the best: with their seed they come to the same tokens.
        own = replace(common, key=sequence.key, index=sequence.index, generated=delivered.get(sequence.index, ()))
        model.add(sequence, replace(own, group=group, more=sequence is not running[-1]))
