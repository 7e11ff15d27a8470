"""Client methods that start requests and open their queues."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Unpack

from headrace_proto.v1 import request_service_pb2 as wire

from headrace._api.handing_over import handover_of
from headrace._api.open_queue import open_queue
from headrace._api.release import RELEASE_TIMEOUT, SILENT_AFTER, try_release
from headrace._api.request_calls import RequestCalls
from headrace._api.text_stream import TextStream
from headrace._streaming.result_queue import ResultQueue
from headrace._values import calls
from headrace._values.calls import REQUESTS
from headrace._values.prompt import ChatMessages, Prompt
from headrace.errors import DeadlineError, UnavailableError
from headrace.fields import StartFields


class StartCalls(RequestCalls):
    """Methods to start requests, and to open queues of those that run. `timeout` is in seconds."""

    _open = staticmethod(open_queue)
    _handover_of = staticmethod(handover_of)

    def start_request(
        self,
        model: str,
        prompt: Prompt | None = None,
        *,
        text: str | None = None,
        ids: Sequence[int] | None = None,
        messages: ChatMessages | None = None,
        request_id: str | None = None,
        timeout: float | None = None,
        **fields: Unpack[StartFields],
    ) -> tuple[str, ResultQueue]:
        """Start a request and return its handle and result queue, without waiting for tokens.

        The call returns once the request is validated and accepted. Retries use the same request_id, so the request is
        started once. The client keeps the request alive as long as it exists, even if the queue is dropped; call
        `release_request` when its results are no longer needed.

        Args:
            model: name of a running model.
            prompt: text, token ids or messages, distinguished by type; or pass one of the next three.
            text: text for the tokenizer, without a chat template.
            ids: token ids, used unchanged.
            messages: conversation for the chat template, as in OpenAI's API: {"role": …, "content": …}, also with
                "name", "tool_calls", "tool_call_id"; other keys are passed to the template.
            request_id: 1 to 128 characters; None: a random UUID. Starting again with the same id and content returns
                the existing request.
            timeout: seconds; None: the client's timeout.
            **fields: fields of `headrace.fields.GenerationFields` and `ChatFields`.

        Returns:
            The handle, and the queue of sequence 0; with n > 1 `queue.choices` has all queues.

        Raises:
            TypeError: unknown keyword, or not exactly one prompt.
            InvalidRequestError: a field, the prompt, the template or the response format is invalid.
            NotFoundError: no such model or adapter.
            StateError: the model is not running.
            OverloadedError: too many requests are waiting; `retry_after` is the time to wait before a retry.
            ConflictError: the request_id was used with other content.
            DeadlineError: the `deadline` cannot be met, or the call timed out.
            UnavailableError: no server could serve the call in time.
        """
        request = calls.start_request(
            model, prompt, text=text, ids=ids, messages=messages, request_id=request_id, fields=fields
        )
        return self._start(request, timeout, generated_id=request_id is None)

    def validate_request(
        self,
        model: str,
        prompt: Prompt | None = None,
        *,
        text: str | None = None,
        ids: Sequence[int] | None = None,
        messages: ChatMessages | None = None,
        timeout: float | None = None,
        **fields: Unpack[StartFields],
    ) -> None:
        """Validate a request as `start_request` would, and start nothing.

        What depends on the load is not looked at: the queue, budgets, limits of owners, the `deadline`. Arguments are
        those of `start_request`.

        Raises:
            TypeError: unknown keyword, or not exactly one prompt.
            InvalidRequestError: a field, the prompt, the template or the response format is invalid.
            NotFoundError: no such model or adapter.
            StateError: the model is not running.
            UnavailableError: no server could serve the call in time.
        """
        request = calls.start_request(
            model, prompt, text=text, ids=ids, messages=messages, request_id=None, fields=fields
        )
        request.ClearField("request_id")
        request.validate_only = True
        method = f"{REQUESTS}/StartRequest"
        return self._quick_call(method, request, wire.StartRequestResponse, lambda _: None, timeout)

    def _start(
        self, request: wire.StartRequestRequest, timeout: float | None, *, generated_id: bool
    ) -> tuple[str, ResultQueue]:
        """Start a request. `generated_id`: its id was generated here, which the async client needs to know."""
        sent = wire.StartRequestRequest()
        sent.CopyFrom(request)
        return self._quick_call(
            f"{REQUESTS}/StartRequest",
            request,
            wire.StartRequestResponse,
            partial(self._started, sent, self._connection.clock.monotonic()),
            timeout,
            request_id=request.request_id,
            before_retry=lambda attempt: setattr(request, "attempt", request.attempt + 1),
        )

    def _started(
        self, request: wire.StartRequestRequest, begun: float, answer: wire.StartRequestResponse
    ) -> tuple[str, ResultQueue]:
        accepted = answer.request
        self._connection.requests.started(accepted.handle)
        handover = self._handover_of(self._connection, request, accepted, begun)
        queues = [
            self._open(self._connection, accepted, index, first=True, handover=handover)
            for index in calls.indices(accepted)
        ]
        if len(queues) > 1:
            queues[0].join(queues)
        return accepted.handle, queues[0]

    def open_queue(
        self, handle: str, *, index: int = 0, from_position: int | None = None, timeout: float | None = None
    ) -> ResultQueue:
        """Open another queue of a request, which is read independently of all others.

        Args:
            handle: handle of the request, which any client may have started.
            index: index of the sequence.
            from_position: position of the first token to read; None: the first one available.
            timeout: seconds; None: the client's timeout.

        Raises:
            RequestReleasedError: the request was released.
            EngineLostError: the request's engine is gone.
            InvalidRequestError: no such sequence or position.
        """
        request = calls.open_queue(handle, index, from_position)

        def opened(answer: wire.GetRequestResponse) -> ResultQueue:
            state = self._observed(answer).request
            info, position = calls.start_of(state, index, from_position)
            return self._open(self._connection, state.request, index, position, info, first=False)

        return self._quick_call(
            f"{REQUESTS}/GetRequest", request, wire.GetRequestResponse, opened, timeout, handle=handle
        )

    def generate(
        self,
        model: str,
        prompt: Prompt | None = None,
        *,
        text: str | None = None,
        ids: Sequence[int] | None = None,
        messages: ChatMessages | None = None,
        request_id: str | None = None,
        timeout: float | None = None,
        **fields: Unpack[StartFields],
    ) -> TextStream:
        """Start a request and iterate over its text.

        The request is stopped and released when the iteration ends, and when the iterator is closed or dropped. If the
        process is killed, the engine stops the request when its lease expires: after 60 s, or the time in `lease`.

        Arguments and errors are those of `start_request`. Iterating raises the errors of `ResultQueue.Get`.

        Returns:
            An iterator of non-empty pieces of text.
        """
        request = calls.start_request(
            model, prompt, text=text, ids=ids, messages=messages, request_id=request_id, fields=fields
        )
        return self._text(request, timeout, generated_id=request_id is None)

    def _text(self, request: wire.StartRequestRequest, timeout: float | None, *, generated_id: bool) -> TextStream:
        calls.check_single(request)
        _, queue = self._start(request, timeout, generated_id=generated_id)
        once, janitor = partial(try_release, self._connection), self._connection.janitor
        return TextStream(queue, self._release_leaving, once, janitor)

    def _release_leaving(self, handle: str) -> None:
        """Release a request that nobody reads any more; if no answer comes, once more over a new connection."""
        try:
            self._release_once(handle, SILENT_AFTER)
        except (DeadlineError, UnavailableError):
            self._connection.reconnect()
            self._release_once(handle, RELEASE_TIMEOUT - SILENT_AFTER)

    def _release_once(self, handle: str, timeout: float | None = None) -> None:
        if handle not in self._connection.requests.unreleased():
            return
        try:
            self.release_request(handle, timeout=timeout)
        except UnavailableError:
            if handle in self._connection.requests.unreleased():  # Else its drained engine is gone, and so is it.
                raise
