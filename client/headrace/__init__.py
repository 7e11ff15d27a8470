"""Headrace: large language models over gRPC, with handles and result queues.

    from headrace import Client

    with Client("localhost:7070") as client:
        handle, queue = client.start_request("smol", messages=[{"role": "user", "content": "Hello!"}])
        for elements in queue:
            print(elements.text, end="", flush=True)

Configs under the names of other systems are built by `headrace.allspark` and `headrace.lmdeploy`.
"""

from headrace.aio import AsyncClient
from headrace.aio_queue import AsyncResultQueue
from headrace.client import Client
from headrace.errors import (
    AuthError,
    ConflictError,
    DeadlineError,
    EngineLostError,
    HeadraceError,
    InternalServerError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    RequestReleasedError,
    StateError,
    UnavailableError,
)
from headrace.result_queue import ResultQueue
from headrace.retry import RetryPolicy
from headrace.types import FinishReason, GeneratedElements, GenerateStatus, ModelState

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "AsyncResultQueue",
    "AuthError",
    "Client",
    "ConflictError",
    "DeadlineError",
    "EngineLostError",
    "FinishReason",
    "GenerateStatus",
    "GeneratedElements",
    "HeadraceError",
    "InternalServerError",
    "InvalidRequestError",
    "ModelState",
    "NotFoundError",
    "OverloadedError",
    "RequestReleasedError",
    "ResultQueue",
    "RetryPolicy",
    "StateError",
    "UnavailableError",
]
