"""Data types that the methods about requests return.

Times are datetimes in UTC. In statistics, times are milliseconds since the Unix epoch and durations milliseconds.
"""

from headrace._types.models import ModelState
from headrace._types.requests import AcceptedRequest, AnswerFormat, ConfigWarning, RequestInfo, RequestList
from headrace._types.results import (
    Embedding,
    FinishReason,
    GeneratedElements,
    GenerateStatus,
    PromptLogprobs,
    RequestStat,
    SequenceInfo,
    StopMatch,
)

__all__ = [
    "AcceptedRequest",
    "AnswerFormat",
    "ConfigWarning",
    "Embedding",
    "FinishReason",
    "GenerateStatus",
    "GeneratedElements",
    "ModelState",
    "PromptLogprobs",
    "RequestInfo",
    "RequestList",
    "RequestStat",
    "SequenceInfo",
    "StopMatch",
]
