"""Building request messages from callers' arguments."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from headrace_proto.v1 import engine_service_pb2, model_service_pb2, request_pb2, request_service_pb2, runtime_pb2

from headrace._values.fill import fill
from headrace._values.prompt import ChatMessages, Prompt, set_prompt
from headrace._values.refusals import invalid, unknown_name
from headrace.errors import InvalidRequestError
from headrace.fields import ChatFields, GenerationFields, InstallFields

REQUESTS = "headrace.v1.RequestService"
MODELS = "headrace.v1.ModelService"
ENGINES = "headrace.v1.EngineService"

_CHAT = frozenset(ChatFields.__annotations__)
_GENERATION = frozenset(GenerationFields.__annotations__)
_PROMPTS = frozenset({"text", "ids", "messages"})
_INSTALL = frozenset(InstallFields.__annotations__)
_MOST_ID_CHARACTERS = 128


def start_request(
    model: str,
    prompt: Prompt | None,
    *,
    text: str | None,
    ids: Sequence[int] | None,
    messages: ChatMessages | None,
    request_id: str | None,
    fields: Mapping[str, Any],
) -> request_service_pb2.StartRequestRequest:
    """Return the message that starts a request, with a random request_id if none is given, so that it can be retried.

    Raises:
        TypeError: unknown keyword, or not exactly one prompt.
        InvalidRequestError: a value has the wrong type.
    """
    _check_names("start_request", fields, _GENERATION | _CHAT, _PROMPTS)
    request = request_service_pb2.StartRequestRequest()
    fill(request, {"model_name": model, "request_id": _request_id(request_id)})
    # A caller's id may have been used before, so gateways must look for the request, as they do for a retry.
    request.attempt = 0 if request_id is None else 1
    set_prompt(request, prompt, text=text, ids=ids, messages=messages, options=_only(fields, _CHAT))
    fill(request.config, _only(fields, _GENERATION))
    request.config.SetInParent()
    return request


def check_single(request: request_service_pb2.StartRequestRequest) -> None:
    """Check that a request has one sequence.

    Raises:
        InvalidRequestError: n is above 1.
    """
    if request.config.n > 1:
        raise invalid("n", request.config.n, "1 for generate; start_request has a queue for each sequence")


def _request_id(given: str | None) -> str:
    if given is None:
        return str(uuid.uuid4())
    if not isinstance(given, str) or not 1 <= len(given) <= _MOST_ID_CHARACTERS:
        raise invalid("request_id", given, f"1 to {_MOST_ID_CHARACTERS} characters")
    return given


def tokenize(
    model: str, prompt: Prompt | None, *, text: str | None, messages: ChatMessages | None, fields: Mapping[str, Any]
) -> engine_service_pb2.TokenizeRequest:
    """Return the message that tokenizes a prompt.

    Raises:
        TypeError: unknown keyword, or not exactly one prompt.
        InvalidRequestError: a value has the wrong type, or the prompt is token ids.
    """
    _check_names("tokenize", fields, _CHAT)
    request = engine_service_pb2.TokenizeRequest()
    fill(request, {"model_name": model})
    set_prompt(request, prompt, text=text, ids=None, messages=messages, options=fields)
    return request


def install_model(
    name: str, path: str, *, engine_ids: Sequence[str], no_wait: bool, fields: Mapping[str, Any]
) -> model_service_pb2.InstallModelRequest:
    """Return the message that installs a model.

    Raises:
        TypeError: unknown keyword.
        InvalidRequestError: a value has the wrong type.
    """
    _check_names("install_model", fields, _INSTALL)
    config = runtime_pb2.RuntimeConfig()
    fill(config, {"model_name": name, "model_path": path, **fields})
    request = model_service_pb2.InstallModelRequest(config=config)
    fill(request, {"engine_ids": engine_ids, "no_wait": no_wait})
    return request


def serialize_model(name: str, path: str, *, fields: Mapping[str, Any]) -> model_service_pb2.SerializeModelRequest:
    """Return the message that has a model written.

    Raises:
        TypeError: unknown keyword.
        InvalidRequestError: a value has the wrong type.
    """
    _check_names("serialize_model", fields, _INSTALL)
    config = runtime_pb2.RuntimeConfig()
    fill(config, {"model_name": name, "model_path": path, **fields})
    return model_service_pb2.SerializeModelRequest(config=config)


def embed(
    model: str, prompts: str | Sequence[Prompt], *, add_special_tokens: bool | None, fields: Mapping[str, Any]
) -> request_service_pb2.EmbedRequest:
    """Return the message that computes embeddings.

    Args:
        fields: pooling, normalize, priority and lora_name.

    Raises:
        InvalidRequestError: a value has the wrong type, or a prompt that is no text has add_special_tokens.
    """
    request = request_service_pb2.EmbedRequest()
    fill(request, {"model_name": model, **fields})
    options = {"add_special_tokens": add_special_tokens}
    for prompt in [prompts] if isinstance(prompts, str) else prompts:
        set_prompt(request.inputs.add(), prompt, text=None, ids=None, messages=None, options=options)
    return request


def get_request(
    handle: str | None,
    *,
    request_id: str | None = None,
    wait: float | None = None,
    index: int | None = None,
    from_position: int | None = None,
    prompt_logprobs_from: int | None = None,
) -> request_service_pb2.GetRequestRequest:
    """Return the message that gets the state of a request.

    Raises:
        TypeError: not exactly one of handle and request_id.
        InvalidRequestError: a value has the wrong type, or an index is given without a position.
    """
    if (handle is None) == (request_id is None):
        raise TypeError("give exactly one of handle and request_id")
    if index is not None and from_position is None:
        raise InvalidRequestError(f"index = {index} needs from_position: it says whose tokens to return")
    request = request_service_pb2.GetRequestRequest()
    given = {"handle": handle, "request_id": request_id, "wait": wait, "index": index}
    fill(request, {**given, "from_position": from_position, "prompt_logprobs_from": prompt_logprobs_from})
    return request


def open_queue(handle: str, index: int, from_position: int | None) -> request_service_pb2.GetRequestRequest:
    """Return the message that gets the state of a request for a new queue, after checking the queue's arguments.

    Raises:
        InvalidRequestError: a value has the wrong type, or is out of the range of its type.
    """
    arguments = {"handle": handle, "index": index, "from_position": from_position}
    fill(request_service_pb2.GeneratedElementsRequest(), arguments)
    return get_request(handle)


def sync_request(handle: str | None, model: str | None) -> request_service_pb2.SyncRequestRequest:
    """Return the message that waits for the end of requests.

    Raises:
        TypeError: not exactly one of handle and model.
    """
    if (handle is None) == (model is None):
        raise TypeError("give exactly one of handle and model")
    request = request_service_pb2.SyncRequestRequest()
    fill(request, {"handle": handle, "model_name": model})
    return request


def list_requests(model: str, *, running_only: bool) -> request_service_pb2.ListRequestsRequest:
    """Return the message that gets the first page of requests.

    Raises:
        InvalidRequestError: a value has the wrong type.
    """
    request = request_service_pb2.ListRequestsRequest(page_size=1000)
    fill(request, {"model_name": model, "running_only": running_only})
    return request


def indices(accepted: request_pb2.AcceptedRequest) -> range:
    """Return the indices of a request's sequences."""
    return range(max(1, accepted.effective_config.n))


def start_of(
    state: request_pb2.RequestState, index: int, from_position: int | None
) -> tuple[request_pb2.SequenceInfo | None, int]:
    """Return the state of a sequence, None if it does not exist yet, and the position at which to start reading it.

    Raises:
        InvalidRequestError: there is no such sequence.
    """
    known = {info.index: info for info in state.sequences}
    if index not in known and index not in indices(state.request):
        count = len(known) or len(indices(state.request))
        raise InvalidRequestError(f"index = {index}: the request has {count} sequences, numbered from 0")
    first = known[index].first_position if index in known else 0
    return known.get(index), first if from_position is None else from_position


def _check_names(
    function: str, given: Mapping[str, Any], known: frozenset[str], others: frozenset[str] = frozenset()
) -> None:
    """Check that all keywords are known; `others` are keywords of the function that may be suggested too."""
    for name in given:
        if name not in known:
            raise unknown_name(f'{function}() has no keyword "{name}"', name, sorted(known | others))


def _only(fields: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name in names}
