"""The sequences of a request that was accepted: made, and given to the core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headrace_engine.config import InterruptPolicy, LogitRules
from headrace_engine.engine.generation import Generation
from headrace_engine.engine.model import Model
from headrace_engine.engine.requests import Sequence
from headrace_engine.engine.result_log import ResultLog
from headrace_engine.engine.resume import read_delivered, reason_of_end, resumed_times
from headrace_engine.engine.statistics import SequenceTimes
from headrace_engine.engine.stopping import Decoder
from headrace_engine.messages import AddSequence
from headrace_engine.request_types import ResumedSequence, StartRequest


def new_sequences(
    model: Model,
    decoding: Callable[[], Decoder],
    generation: Generation,
    new_times: Callable[[], SequenceTimes],
    request: StartRequest,
    resumed: list[ResumedSequence],
) -> list[Sequence]:
    """One for each index, with what was delivered of it in its log.

    Args:
        decoding: makes a decoder.
        new_times: makes the times of a sequence that begins here.

    Raises:
        InvalidArgument: ids were delivered that go on after a stop.
    """
    return [_sequence(model, decoding(), generation, resumed_times(new_times(), request, one), one) for one in resumed]


def message(prompt: tuple[int, ...], generation: Generation, rules: LogitRules | None, grammar: str) -> AddSequence:
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
        grammar=grammar,
        priority=config.priority or 0,
        use_prefix_cache=config.use_prefix_cache is not False,
        cache_salt=config.cache_salt or "",
        interrupt_policy=config.interrupt_policy or InterruptPolicy.RESUME,
    )


def begin(
    model: Model,
    sequences: list[Sequence],
    resumed: list[ResumedSequence],
    generation: Generation,
    common: AddSequence,
) -> None:
    """Have computed what has not ended elsewhere, from one prompt."""
    running: list[AddSequence] = []
    for sequence, one in zip(sequences, resumed, strict=True):
        stop = sequence.decoder.stop
        if one.ended or stop is not None:
            sequence.finish(reason_of_end(one, generation, stop), sequence.times.arrival)
        else:
            ids = tuple(one.delivered_ids)
            running.append(replace(common, key=sequence.key, index=sequence.index, generated=ids))
    group = running[0].key if len(running) > 1 else 0
    for command in running:
        model.add(sequences[command.index], replace(command, group=group))


def _sequence(
    model: Model, decoder: Decoder, generation: Generation, times: SequenceTimes, resumed: ResumedSequence
) -> Sequence:
    config = generation.effective
    top_count = min(generation.sampling.top_logprobs, model.effective.vocab_size)
    log = ResultLog(with_logprobs=bool(config.logprobs), top_count=top_count, delivered=resumed.delivered_ids)
    read_delivered(decoder, resumed.delivered_ids, resumed.index)
    return Sequence(resumed.index, model.outputs.new_key(), log, decoder, times)
