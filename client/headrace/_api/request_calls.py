"""The client's calls about requests and their results."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Unpack

from headrace_proto.v1 import request_pb2
from headrace_proto.v1 import request_service_pb2 as wire

from headrace._api.giving_back import give_back
from headrace._api.model_calls import ModelCalls
from headrace._api.open_queue import open_queue
from headrace._api.text_stream import TextStream
from headrace._base.retry import ONCE
from headrace._streaming.result_queue import ResultQueue
from headrace._values import calls
from headrace._values.calls import REQUESTS
from headrace._values.convert import get_request_answer, request_of, sequence_of
from headrace._values.fill import fill
from headrace._values.prompt import ChatMessages, Prompt
from headrace.errors import UnavailableError
from headrace.fields import StartFields
from headrace.types import RequestInfo, SequenceInfo


class RequestCalls(ModelCalls):
    """Starting, following and ending requests.

    Requests are known by their handle, an opaque string. `timeout` is in seconds, the client's own by default.
    """

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
        """Starts a request; returns once it was checked and accepted, and does not wait for its tokens.

        A lost answer is asked for again under the same request_id, so that the request is started once. The request is
        kept alive while this client lives, whether its queue is read, or even kept; release it when it is done with.

        Args:
            model: a running model.
            prompt: text, token ids or messages, told by its kind; or one of the next three.
            text: text for the tokenizer, as it is, without a chat template.
            ids: token ids, used as they are.
            messages: a conversation for the chat template, as in OpenAI's API: {"role": …, "content": …}, also with
                "name", "tool_calls", "tool_call_id"; further keys reach the template.
            request_id: 1 to 128 characters; None: a UUID is drawn. The same id and content again find the request that
                was started before.
            timeout: seconds.
            **fields: the fields of `headrace.fields.GenerationFields` and `ChatFields`.

        Returns:
            The handle, and the queue of sequence 0; with n > 1 the others are `queue.choices`.

        Raises:
            TypeError: an unknown keyword, or not exactly one prompt.
            InvalidRequestError: a field, the prompt, the template or the response format is wrong.
            NotFoundError: no such model or adapter.
            StateError: the model is not running.
            OverloadedError: too much waits already; `retry_after` says when to come back.
            ConflictError: the request_id was used with other content.
            DeadlineError: the `deadline` cannot be met, or the call's own time ran out.
            UnavailableError: nobody could serve the call in time.
        """
        request = calls.start_request(
            model, prompt, text=text, ids=ids, messages=messages, request_id=request_id, fields=fields
        )
        return self._start(request, timeout, drawn=request_id is None)

    def _start(
        self, request: wire.StartRequestRequest, timeout: float | None, *, drawn: bool
    ) -> tuple[str, ResultQueue]:
        """Starts a request; `drawn`: nobody else knows its id."""
        return self._quick(
            f"{REQUESTS}/StartRequest",
            request,
            wire.StartRequestResponse,
            self._started,
            timeout,
            request_id=request.request_id,
            before_retry=lambda attempt: setattr(request, "attempt", request.attempt + 1),
        )

    def _started(self, answer: wire.StartRequestResponse) -> tuple[str, ResultQueue]:
        accepted = answer.request
        self._connection.requests.started(accepted.handle)
        queues = [open_queue(self._connection, accepted, index, first=True) for index in calls.indices(accepted)]
        if len(queues) > 1:
            ResultQueue.join(queues)
        return accepted.handle, queues[0]

    def open_queue(
        self, handle: str, *, index: int = 0, from_position: int | None = None, timeout: float | None = None
    ) -> ResultQueue:
        """One more queue of a request, which reads independently of all others.

        Args:
            handle: the request, started here or elsewhere.
            index: the sequence.
            from_position: place of the first token wanted; None: the first there is.
            timeout: seconds.

        Raises:
            RequestReleasedError: no such request any more.
            EngineLostError: its engine is gone.
            InvalidRequestError: it has no such sequence, or the position is none.
        """
        request = calls.open_queue(handle, index, from_position)

        def opened(answer: wire.GetRequestResponse) -> ResultQueue:
            state = self._observed(answer).request
            info, position = calls.place_of(state, index, from_position)
            return self._queue(state.request, index, position, info)

        return self._quick(f"{REQUESTS}/GetRequest", request, wire.GetRequestResponse, opened, timeout, handle=handle)

    def _queue(
        self, accepted: request_pb2.AcceptedRequest, index: int, position: int, info: request_pb2.SequenceInfo | None
    ) -> ResultQueue:
        return open_queue(self._connection, accepted, index, position, info, first=False)

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
        """Starts a request and iterates over its text; stops and releases it at the end, when closed, or when dropped.

        Where this process is killed, the engine goes on for the request's lease: 60 s, unless `lease` says less.

        Arguments and errors are those of `start_request`; iterating raises what `ResultQueue.Get` raises.
        """
        request = calls.start_request(
            model, prompt, text=text, ids=ids, messages=messages, request_id=request_id, fields=fields
        )
        return self._text(request, timeout, drawn=request_id is None)

    def _text(self, request: wire.StartRequestRequest, timeout: float | None, *, drawn: bool) -> TextStream:
        calls.check_single(request)
        _, queue = self._start(request, timeout, drawn=drawn)
        return TextStream(queue, self._release_once, partial(give_back, self._connection), self._connection.janitor)

    def _release_once(self, handle: str, timeout: float | None = None) -> None:
        if handle not in self._connection.requests.unreleased():
            return
        try:
            self.release_request(handle, timeout=timeout)
        except UnavailableError:
            if handle in self._connection.requests.unreleased():  # Otherwise its engine took it along.
                raise

    def stop_request(self, handle: str, *, timeout: float | None = None) -> list[SequenceInfo]:
        """Stops a request; returns its sequences when their end is there. What was generated stays readable.

        Stopping an ended request changes nothing.

        Raises:
            RequestReleasedError: no such request any more.
            EngineLostError: its engine is gone.
        """
        request = wire.StopRequestRequest()
        fill(request, {"handle": handle})

        def stopped(answer: wire.StopRequestResponse) -> list[SequenceInfo]:
            self._connection.requests.observe(handle, answer.sequences)
            return [sequence_of(info) for info in answer.sequences]

        return self._quick(
            f"{REQUESTS}/StopRequest", request, wire.StopRequestResponse, stopped, timeout, handle=handle
        )

    def release_request(self, handle: str, *, timeout: float | None = None) -> None:
        """Stops a request and frees its results; its queues raise RequestReleasedError from then on.

        Releasing a released request, or one whose engine is gone, succeeds. One that ended with DRAINED is asked for
        once: its engine goes away, and takes the results along.
        """
        request = wire.ReleaseRequestRequest()
        fill(request, {"handle": handle})
        requests = self._connection.requests
        drained = requests.drained(handle)
        if drained:
            requests.released(handle)

        def released(answer: wire.ReleaseRequestResponse) -> None:
            requests.released(handle)

        method, policy = f"{REQUESTS}/ReleaseRequest", ONCE if drained else None
        return self._quick(
            method, request, wire.ReleaseRequestResponse, released, timeout, handle=handle, policy=policy
        )

    def sync_request(
        self, handle: str | None = None, *, model: str | None = None, timeout: float | None = None
    ) -> list[RequestInfo]:
        """Waits until a request ended, or all of one's requests to a model that were started before this call.

        Args:
            handle: one request.
            model: or all to this model.
            timeout: seconds; None: however long it takes.

        Raises:
            TypeError: not exactly one of handle and model.
            DeadlineError: they did not end in time; they go on.
            RequestReleasedError: no such request any more.
            EngineLostError: its engine is gone.
        """
        request = calls.sync_request(handle, model)

        def ended(answer: wire.SyncRequestResponse) -> list[RequestInfo]:
            for state in answer.requests:
                self._connection.requests.observe(state.request.handle, state.sequences)
            return [request_of(state) for state in answer.requests]

        return self._ask(
            f"{REQUESTS}/SyncRequest", request, wire.SyncRequestResponse, ended, timeout, handle=handle or ""
        )

    def get_request(
        self,
        handle: str | None = None,
        *,
        request_id: str | None = None,
        wait: float | None = None,
        index: int | None = None,
        from_position: int | None = None,
        prompt_logprobs_from: int | None = None,
        timeout: float | None = None,
    ) -> RequestInfo:
        """A request as it stands, whatever its queues have read.

        Args:
            handle: the request.
            request_id: or the id its client chose.
            wait: seconds to wait at most: with from_position until something is unread there, else until it ended.
                Running out of this time is no error.
            index: the sequence whose tokens to answer; needs from_position.
            from_position: answer the tokens from here, at most 1 MiB.
            prompt_logprobs_from: answer log-probabilities of the prompt from here, with the tokens at most 1 MiB; needs
                a request that asked for them.
            timeout: seconds, beside `wait`.

        Raises:
            TypeError: not exactly one of handle and request_id.
            NotFoundError: no such request (`RequestReleasedError` for a handle).
            EngineLostError: its engine is gone.
        """
        request = calls.get_request(
            handle,
            request_id=request_id,
            wait=wait,
            index=index,
            from_position=from_position,
            prompt_logprobs_from=prompt_logprobs_from,
        )

        def told(answer: wire.GetRequestResponse) -> RequestInfo:
            return get_request_answer(self._observed(answer))

        limit = self._connection.limit(timeout, waiting=request.wait.ToNanoseconds() / 1e9)
        return self._ask(f"{REQUESTS}/GetRequest", request, wire.GetRequestResponse, told, limit, handle=handle or "")

    def list_requests(
        self, model: str = "", *, running_only: bool = False, timeout: float | None = None
    ) -> list[RequestInfo]:
        """One's requests that are not released, newest first; without effective_config.

        Args:
            model: only those to this model; "" = to all.
            running_only: only those that have not ended.
            timeout: seconds for each page of 1000.
        """
        request = calls.list_requests(model, running_only=running_only)
        found: list[RequestInfo] = []
        while True:
            page, request.page_token = self._page(request, timeout)
            found += page
            if not request.page_token:
                return found

    def _page(self, request: wire.ListRequestsRequest, timeout: float | None) -> tuple[list[RequestInfo], str]:
        """One page, and the token of the next; "" = there is none."""
        return self._quick(
            f"{REQUESTS}/ListRequests",
            request,
            wire.ListRequestsResponse,
            lambda answer: ([request_of(state) for state in answer.requests], answer.next_page_token),
            timeout,
        )

    def _observed(self, answer: wire.GetRequestResponse) -> wire.GetRequestResponse:
        """Tells the queues of the request how it stands."""
        self._connection.requests.observe(answer.request.request.handle, answer.request.sequences)
        return answer
