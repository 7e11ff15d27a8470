"""Hand-over: continue a request at its readers' positions after another engine was lost."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from headrace_engine.engine.config.field_checks import UINT32, Field, check, check_ids, table, tuple_of
from headrace_engine.engine.config.generation import Generation
from headrace_engine.engine.results.statistics import SequenceTimes
from headrace_engine.engine.text.stopping import Decoder
from headrace_engine.errors import InvalidArgument
from headrace_engine.request_types import ResumedSequence, StartRequest
from headrace_engine.result_types import FinishReason, RequestStat, StopMatch

LAST_TIME = 253_402_300_799
"""Maximum Timestamp: the last second of the year 9999."""

LONGEST_TIME = 315_576_000_000
"""Maximum Duration, in seconds."""

MOST_COUNTED = 2**31 - 1
"""Maximum of a count reported by a previous engine: it continues here."""

_STAT = table(
    Field("arrival_time", 0, LAST_TIME),
    Field("scheduled_time", 0, LAST_TIME),
    Field("first_token_time", 0, LAST_TIME),
    Field("last_token_time", 0, LAST_TIME),
    Field("finished_time", 0, LAST_TIME),
    Field("time_in_queue", 0, LONGEST_TIME),
    Field("time_to_first_token", 0, LONGEST_TIME),
    Field("context_token_length", 0, UINT32),
    Field("generated_token_length", 0, UINT32),
    Field("context_cached_length", 0, UINT32),
    Field("context_tps", 0),
    Field("generate_tps", 0),
    Field("inter_token_p50", 0, LONGEST_TIME),
    Field("inter_token_p99", 0, LONGEST_TIME),
    Field("preemptions", 0, MOST_COUNTED),
    Field("handovers", 0, MOST_COUNTED),
    Field("drafted_tokens", 0, MOST_COUNTED),
    Field("accepted_tokens", 0, MOST_COUNTED),
)


def check_handover(request: StartRequest) -> None:
    """Refuse a hand-over with missing or contradictory fields.

    Raises:
        InvalidArgument: naming the field.
    """
    if request.resume is None:
        if request.handover:
            raise InvalidArgument.field("resume", f"is not set, and handover = {request.handover} needs it")
        return
    if not request.handover:
        raise InvalidArgument.field("handover", "= 0 is the first start, and resume is set; allowed: at least 1")
    if not request.request_id:
        raise InvalidArgument.field("request_id", "is empty, and a hand-over goes on with a request that has one")
    indices = [sequence.index for sequence in request.resume]
    if not indices or len(set(indices)) < len(indices):
        text = f"are those of {indices or 'no sequence'}; allowed: at least one, and each sequence once"
        raise InvalidArgument.field("resume.sequences", text)
    for number, resumed in enumerate(request.resume):
        if resumed.stat is not None:
            check(resumed.stat, _STAT, f"resume.sequences[{number}].stat.")


def check_delivered(
    request: StartRequest, generation: Generation, vocab_size: int, prompt_length: int, holes: Collection[int] = ()
) -> list[ResumedSequence]:
    """Return the delivered part of each sequence, by index; empty ones unless the request is a hand-over.

    Raises:
        InvalidArgument: no engine can have delivered that.
    """
    count = generation.effective.n or 1
    found = [ResumedSequence(index) for index in range(count)]
    for number, resumed in enumerate(request.resume or ()):
        path = f"resume.sequences[{number}]"
        if resumed.index >= count:
            text = f"= {resumed.index} is out of range; the request has {count} sequence(s), from index 0 on"
            raise InvalidArgument.field(f"{path}.index", text)
        _check_one(resumed, path, generation, prompt_length)
        check_ids(f"{path}.delivered_ids", resumed.delivered_ids, vocab_size, holes)
        found[resumed.index] = replace(resumed, delivered_ids=tuple_of(resumed.delivered_ids))
    return found


def _check_one(resumed: ResumedSequence, field: str, generation: Generation, prompt_length: int) -> None:
    path, ids = f"{field}.delivered_ids", resumed.delivered_ids
    if len(ids) > generation.max_new:
        raise InvalidArgument.field(path, f"has {len(ids)} ids; the request generates at most {generation.max_new}")
    ends = [position for position, token_id in enumerate(ids[:-1]) if token_id in generation.eos_ids]
    if ends:
        text = f"goes on after id {ids[ends[0]]} at position {ends[0]}, which ends the sequence"
        raise InvalidArgument.field(path, text)
    cached = resumed.stat.context_cached_length if resumed.stat is not None else None
    if cached is not None and cached > prompt_length:
        text = f"= {cached} is out of range; the prompt has {prompt_length} tokens"
        raise InvalidArgument.field(f"{field}.stat.context_cached_length", text)


def read_delivered(decoder: Decoder, resumed: ResumedSequence, request: StartRequest) -> None:
    """Feed the delivered ids to the decoder, to restore incomplete characters and partial matches of stops.

    Raises:
        InvalidArgument: ids continue after a stop.
    """
    for position, token_id in enumerate(resumed.delivered_ids):
        if decoder.stop is not None:
            number = [each.index for each in request.resume or ()].index(resumed.index)
            text = f"goes on after position {position - 1}, where {decoder.stop.text!r} stops the sequence"
            raise InvalidArgument.field(f"resume.sequences[{number}].delivered_ids", text)
        decoder.push(token_id)


def resumed_times(times: SequenceTimes, request: StartRequest, resumed: ResumedSequence) -> SequenceTimes:
    """Return the times with the first ones of a hand-over kept, and its counts continued."""
    if request.resume is not None:
        kept = resumed.stat or RequestStat()
        # A sequence whose end was not delivered ends here, not when it did elsewhere.
        times.kept = kept if resumed.ended else replace(kept, finished_time=None)
        before = request.handover - 1 if times.kept.handovers is None else times.kept.handovers
        times.handovers = before + 1
    return times


def reason_of_end(resumed: ResumedSequence, generation: Generation, stop: StopMatch | None) -> FinishReason:
    """Return the finish reason of a sequence whose end was delivered, from its ids; stopped if they do not show it."""
    ids = resumed.delivered_ids
    if stop is not None:
        return FinishReason.STOP_WORD
    if ids and ids[-1] in generation.eos_ids:
        return FinishReason.EOS
    return FinishReason.MAX_LENGTH if len(ids) == generation.max_new else FinishReason.STOPPED
