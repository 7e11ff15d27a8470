"""Client methods about requests that were started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from headrace_proto.v1 import request_pb2
from headrace_proto.v1 import request_service_pb2 as wire

from headrace._api.model_calls import ModelCalls
from headrace._base.retry import ONCE
from headrace._values import calls
from headrace._values.calls import REQUESTS
from headrace._values.convert import embeddings_of, get_request_answer, request_of, sequence_of
from headrace._values.fill import fill
from headrace._values.prompt import Prompt
from headrace._values.wire_errors import error_from_status
from headrace.types import Embedding, RequestInfo, RequestList, SequenceInfo


class RequestCalls(ModelCalls):
    """Methods to follow, stop and release requests.

    A request is identified by its handle, an opaque string. `timeout` is in seconds; None is the client's timeout.
    """

    def embed(
        self,
        model: str,
        prompts: str | Sequence[Prompt],
        *,
        pooling: Literal["LAST", "MEAN"] = "LAST",
        normalize: bool = True,
        add_special_tokens: bool | None = None,
        priority: int | None = None,
        lora_name: str | None = None,
        timeout: float | None = None,
    ) -> list[Embedding]:
        """Return the embeddings of prompts: the model's last hidden states, after the final norm, pooled.

        The engine computes the prompts as it computes requests, together with others, and keeps nothing of them.

        Args:
            model: name of a running model.
            prompts: at most 64, each text, token ids or messages; or one text.
            pooling: "LAST": the state of the last token; "MEAN": the mean of the states of all tokens.
            normalize: divide each vector by its length (its Euclidean norm).
            add_special_tokens: texts only: add what the tokenizer puts at begin and end; None: the tokenizer's own.
            priority: higher is served first; None: 0.
            lora_name: an adapter of the model, with which the states are computed; None: none.
            timeout: seconds; None: the client's timeout.

        Raises:
            InvalidRequestError: a field or a prompt is invalid, or there are none or too many.
            NotFoundError: no such model or adapter.
            StateError: the model is not running.
            OverloadedError: too many requests are waiting.
            UnavailableError: no server could serve the call in time.
        """
        fields = {"pooling": pooling, "normalize": normalize, "priority": priority, "lora_name": lora_name}
        request = calls.embed(model, prompts, add_special_tokens=add_special_tokens, fields=fields)
        return self._quick_call(f"{REQUESTS}/Embed", request, wire.EmbedResponse, embeddings_of, timeout)

    def stop_request(self, handle: str, *, timeout: float | None = None) -> list[SequenceInfo]:
        """Stop a request and return its sequences once they have ended. Generated tokens stay readable.

        Stopping a request that has ended changes nothing.

        Args:
            handle: handle of the request.
            timeout: seconds; None: the client's timeout.

        Raises:
            RequestReleasedError: the request was released.
            EngineLostError: the request's engine is gone.
        """
        request = wire.StopRequestRequest()
        fill(request, {"handle": handle})

        def stopped(answer: wire.StopRequestResponse) -> list[SequenceInfo]:
            self._connection.requests.observe(handle, answer.sequences)
            return [sequence_of(info) for info in answer.sequences]

        return self._quick_call(
            f"{REQUESTS}/StopRequest", request, wire.StopRequestResponse, stopped, timeout, handle=handle
        )

    def release_request(self, handle: str, *, timeout: float | None = None) -> None:
        """Stop a request and free its results. Its queues raise RequestReleasedError from then on.

        Releasing a request again, or one whose engine is gone, succeeds. For a request that ended with DRAINED the
        call is not retried, because its engine shuts down and frees the results.

        Args:
            handle: handle of the request.
            timeout: seconds; None: the client's timeout.
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
        return self._quick_call(
            method, request, wire.ReleaseRequestResponse, released, timeout, handle=handle, policy=policy
        )

    def sync_request(
        self, handle: str | None = None, *, model: str | None = None, timeout: float | None = None
    ) -> list[RequestInfo]:
        """Wait until a request has ended, or all requests to a model that were started before this call.

        Args:
            handle: handle of a request.
            model: name of a model, for all requests of this owner to it.
            timeout: seconds; None: without limit.

        Returns:
            The ended requests.

        Raises:
            TypeError: not exactly one of handle and model.
            DeadlineError: the requests did not end in time; they continue.
            RequestReleasedError: the request was released.
            EngineLostError: the request's engine is gone.
        """
        request = calls.sync_request(handle, model)

        def ended(answer: wire.SyncRequestResponse) -> list[RequestInfo]:
            for state in map(self._known, answer.requests):
                self._connection.requests.observe(state.request.handle, state.sequences)
            return [request_of(state) for state in answer.requests]

        return self._call(
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
        """Return the current state of a request, independent of what its queues have read.

        Args:
            handle: handle of the request.
            request_id: or the id that its client chose.
            wait: maximum seconds to wait: with from_position until there are tokens from that position on, else until
                the request has ended. The result is returned after this time in any case.
            index: index of the sequence whose tokens to return; needs from_position.
            from_position: return tokens from this position on, at most 1 MiB.
            prompt_logprobs_from: return prompt logprobs from this position on, at most 1 MiB together with the tokens;
                the request must have been started with `prompt_logprobs`.
            timeout: seconds, in addition to `wait`; None: the client's timeout.

        Raises:
            TypeError: not exactly one of handle and request_id.
            NotFoundError: no such request (`RequestReleasedError` for a handle).
            EngineLostError: the request's engine is gone.
        """
        request = calls.get_request(
            handle,
            request_id=request_id,
            wait=wait,
            index=index,
            from_position=from_position,
            prompt_logprobs_from=prompt_logprobs_from,
        )

        def converted(answer: wire.GetRequestResponse) -> RequestInfo:
            return get_request_answer(self._observed(answer))

        limit = self._connection.limit(timeout, waiting=request.wait.ToNanoseconds() / 1e9)
        method, answer, about = f"{REQUESTS}/GetRequest", wire.GetRequestResponse, handle or ""
        return self._call(method, request, answer, converted, limit, handle=about)

    def list_requests(
        self, model: str = "", *, running_only: bool = False, timeout: float | None = None
    ) -> RequestList:
        """Return this owner's unreleased requests, newest first; `effective_config` is empty.

        A gateway lists the requests on engines that it reaches, and `missing` of the list names the other engines.

        Args:
            model: only requests to this model; "" = all.
            running_only: only requests that have not ended.
            timeout: seconds for each page of 1000 requests; None: the client's timeout.
        """
        request = calls.list_requests(model, running_only=running_only)
        found = RequestList()
        while True:
            page, request.page_token = self._page(request, timeout)
            found.extend_by(page)
            if not request.page_token:
                return found

    def _page(self, request: wire.ListRequestsRequest, timeout: float | None) -> tuple[RequestList, str]:
        """Return one page, and the token of the next one; "" after the last."""
        return self._quick_call(
            f"{REQUESTS}/ListRequests",
            request,
            wire.ListRequestsResponse,
            self._listed,
            timeout,
        )

    def _listed(self, answer: wire.ListRequestsResponse) -> tuple[RequestList, str]:
        requests = [request_of(self._known(state)) for state in answer.requests]
        missing = {each.engine: error_from_status(each.failure) for each in answer.missing}
        return RequestList(requests, missing), answer.next_page_token

    def _observed(self, answer: wire.GetRequestResponse) -> wire.GetRequestResponse:
        """Pass a request's state on to its queues, and return the answer."""
        state = self._known(answer.request)
        self._connection.requests.observe(state.request.handle, state.sequences)
        return answer

    def _known(self, state: request_pb2.RequestState) -> request_pb2.RequestState:
        """Set the handle by which the caller knows a request, which may have moved; return its state."""
        state.request.handle = self._connection.requests.known_as(state.request.handle)
        return state
