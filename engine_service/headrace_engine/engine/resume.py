"""Hand-over: a request goes on where its readers were when another engine was lost."""

from __future__ import annotations

from headrace_engine.engine.generation import Generation, check_ids
from headrace_engine.engine.statistics import SequenceTimes
from headrace_engine.errors import InvalidArgument
from headrace_engine.request_types import ResumedSequence, StartRequest
from headrace_engine.result_types import FinishReason, RequestStat

_NOTHING = ResumedSequence()


def check_handover(request: StartRequest) -> None:
    """Refuse a hand-over that says less, or other things, than one must.

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
    if indices != [0]:
        text = f"are those of {indices or 'no sequence'}; the request has one, with index 0"
        raise InvalidArgument.field("resume.sequences", text)


def check_delivered(request: StartRequest, generation: Generation, vocab_size: int) -> ResumedSequence:
    """What was delivered of the one sequence; nothing where the request is no hand-over.

    Raises:
        InvalidArgument: no engine can have delivered that.
    """
    if request.resume is None:
        return _NOTHING
    resumed, path = request.resume[0], "resume.sequences[0].delivered_ids"
    ids = resumed.delivered_ids
    check_ids(path, ids, vocab_size)
    if len(ids) > generation.max_new:
        raise InvalidArgument.field(path, f"has {len(ids)} ids; the request generates at most {generation.max_new}")
    ends = [place for place, token_id in enumerate(ids[:-1]) if token_id in generation.eos_ids]
    if ends:
        text = f"goes on after id {ids[ends[0]]} at position {ends[0]}, which ends the sequence"
        raise InvalidArgument.field(path, text)
    return resumed


def resumed_times(times: SequenceTimes, request: StartRequest, resumed: ResumedSequence) -> SequenceTimes:
    """The same times, with the first ones of a hand-over kept and its counts going on."""
    if request.resume is not None:
        times.kept = resumed.stat or RequestStat()
        before = request.handover - 1 if times.kept.handovers is None else times.kept.handovers
        times.handovers = before + 1
    return times


def reason_of_end(resumed: ResumedSequence, generation: Generation) -> FinishReason:
    """Why a sequence whose end was delivered had ended, as far as its ids tell: else it counts as stopped."""
    ids = resumed.delivered_ids
    if ids and ids[-1] in generation.eos_ids:
        return FinishReason.EOS
    return FinishReason.MAX_LENGTH if len(ids) == generation.max_new else FinishReason.STOPPED
