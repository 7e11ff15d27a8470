"""Headrace: large language models over gRPC, with handles and result queues.

    from headrace import Client

    with Client("localhost:7070") as client:
        handle, queue = client.start_request("smol", messages=[{"role": "user", "content": "Hello!"}])
        for elements in queue:
            print(elements.text, end="", flush=True)

`headrace.allspark`, `headrace.lmdeploy` and `headrace.vsurge` have the APIs of DashInfer, LMDeploy and vSurge.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace._base.retry import RetryPolicy
    from headrace._streaming.aio_queue import AsyncResultQueue
    from headrace._streaming.result_queue import ResultQueue
    from headrace.aio import AsyncClient
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
    from headrace.lmdeploy.pipe import pipeline
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
    "pipeline",
]

_HOMES = {
    "AsyncClient": "aio",
    "AsyncResultQueue": "_streaming.aio_queue",
    "Client": "client",
    "ResultQueue": "_streaming.result_queue",
    "RetryPolicy": "_base.retry",
    "pipeline": "lmdeploy",
    **dict.fromkeys(("FinishReason", "GenerateStatus", "GeneratedElements", "ModelState"), "types"),
}
"""Modules of the names above; all others are errors."""


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import what is used when it is used: servers need no more of this package than headrace.v1."""
        from importlib import import_module
        from importlib.util import find_spec

        if name in __all__:
            found = getattr(import_module(f"headrace.{_HOMES.get(name, 'errors')}"), name)
        elif not name.startswith("_") and find_spec(f"headrace.{name}") is not None:
            found = import_module(f"headrace.{name}")
        else:
            raise AttributeError(f"module 'headrace' has no attribute {name!r}")
        globals()[name] = found
        return found
