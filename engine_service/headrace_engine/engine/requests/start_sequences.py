"""The sequences of a request that was accepted: made, and given to the core."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Ids
from dataclasses import dataclass, replace

from headrace_engine.commands import AddSequence
from headrace_engine.engine.config.generation import Generation, has_candidates
from headrace_engine.engine.formats.frames import Verdict
from headrace_engine.engine.models.model import Model
from headrace_engine.engine.models.prepare import Prepared
from headrace_engine.engine.requests.resume import read_delivered, reason_of_end, resumed_times
from headrace_engine.engine.results.best_of import Candidate, Contest, ShownLog
from headrace_engine.engine.results.prompt_log import PromptLog
from headrace_engine.engine.results.result_log import ResultLog
from headrace_engine.engine.results.sequence import Sequence
from headrace_engine.engine.results.statistics import SequenceTimes
from headrace_engine.engine.results.token_details import Asked
from headrace_engine.engine.text.stopping import Decoder
from headrace_engine.generation_config import InterruptPolicy
from headrace_engine.request_types import ResumedSequence, StartRequest
from headrace_engine.sampling_params import LogitRules


@dataclass(frozen=True, slots=True)
class NewSequences:
    """The sequences of a request.

    Attributes:
        shown: what readers read, by index.
        resumed: what was delivered of each before.
        contest: whose candidates are computed instead; None: they are computed themselves.
    """

    shown: list[Sequence]
    resumed: list[ResumedSequence]
    contest: Contest | None = None

    @property
    def computed(self) -> list[Sequence]:
        """What the core computes, by its index there."""
        return self.shown if self.contest is None else self.contest.candidates

    @property
    def count_field(self) -> str:
        """Field of the config that says how many are computed."""
        return "n" if self.contest is None else "best_of"

    @property
    def left(self) -> list[ResumedSequence]:
        """Those that have not ended elsewhere."""
        pairs = zip(self.shown, self.resumed, strict=True)
        return [one for sequence, one in pairs if not one.ended and sequence.decoder.stop is None]

    @property
    def prompt(self) -> PromptLog | None:
        """What is told of the prompt; None: the config does not ask."""
        return self.shown[0].prompt

    def share(self, prompt: PromptLog | None) -> None:
        """Let whichever computes the prompt tell of it."""
        for sequence in (*self.shown, *self.computed):
            sequence.prompt = prompt


def asked_of(generation: Generation, prepared: Prepared) -> Asked:
    """What readers are told about each token."""
    config, spec = generation.effective, prepared.files.spec
    top_count = min(config.top_logprobs or 0, spec.vocab_size)
    return Asked(bool(config.logprobs), top_count, spec.hidden_size * bool(config.enable_tensors_from_model_inference))


def prompt_log(ids: Ids[int], generation: Generation, vocab_size: int) -> PromptLog | None:
    """For what is told of the prompt; None: the config does not ask."""
    top_count = generation.effective.prompt_logprobs
    return None if top_count is None else PromptLog(ids, min(top_count, vocab_size))


def new_sequences(
    model: Model,
    asked: Asked,
    decoding: Callable[[], Decoder],
    generation: Generation,
    new_times: Callable[[], SequenceTimes],
    request: StartRequest,
    resumed: list[ResumedSequence],
) -> NewSequences:
    """One for each index, with what was delivered of it in its log.

    Args:
        asked: what readers are told about each token.
        decoding: makes a decoder.
        new_times: makes the times of a sequence that begins here.

    Raises:
        InvalidArgument: ids were delivered that go on after a stop.
    """
    config, shown = generation.effective, []
    kind = ShownLog if has_candidates(config) else ResultLog
    for one in resumed:
        log = kind(asked, delivered=one.delivered_ids)
        decoder, times = decoding(), resumed_times(new_times(), request, one)
        read_delivered(decoder, one, request)
        shown.append(Sequence(one.index, model.outputs.new_key(), log, decoder, times))
    found = NewSequences(shown, resumed)
    if not has_candidates(config) or not found.left:
        return found
    contest = Contest(shown, 1.0 if config.length_penalty is None else config.length_penalty)
    for index in range(config.best_of or 1):
        log = ResultLog(replace(asked, logprobs=True))
        contest.enter(Candidate(index, model.outputs.new_key(), log, decoding(), new_times(), contest))
    return replace(found, contest=contest)


def message(prompt: tuple[int, ...], generation: Generation, rules: LogitRules | None, guided: Verdict) -> AddSequence:
    """What all sequences of a request have in common."""
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
    """Have computed what has not ended elsewhere, from one prompt."""
    left = sequences.left
    for sequence, one in zip(sequences.shown, sequences.resumed, strict=True):
        if one not in left:
            sequence.finish(reason_of_end(one, generation, sequence.decoder.stop), sequence.times.arrival)
    delivered = {one.index: tuple(one.delivered_ids) for one in left} if sequences.contest is None else {}
    running = [each for each in sequences.computed if each.log.end is None]
    group = running[0].key if len(running) > 1 else 0
    for sequence in running:
        # Candidates start again, whatever was delivered of the best: with their seed they come to the same tokens.
        own = replace(common, key=sequence.key, index=sequence.index, generated=delivered.get(sequence.index, ()))
        model.add(sequence, replace(own, group=group, more=sequence is not running[-1]))
