"""The routes, and what answers elsewhere."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from starlette.routing import Route, Router

from headrace_gateway.access.access import Access
from headrace_gateway.forwarding.calls import LiveCalls
from headrace_gateway.http.anthropic import errors as anthropic_errors
from headrace_gateway.http.anthropic import events, messages
from headrace_gateway.http.anthropic.errors import AnthropicErrors
from headrace_gateway.http.anthropic.request import CountRequest, MessageRequest
from headrace_gateway.http.bodies import Bodies
from headrace_gateway.http.clients import Clients
from headrace_gateway.http.console.files import console_routes
from headrace_gateway.http.endpoint import Endpoint, ErrorForm, Handler
from headrace_gateway.http.exchange import Exchange
from headrace_gateway.http.failures import Failure
from headrace_gateway.http.generation import Generations
from headrace_gateway.http.metrics.route import Metrics
from headrace_gateway.http.openai import chat, completions, embeddings, models
from headrace_gateway.http.openai.chat_request import ChatRequest
from headrace_gateway.http.openai.errors import ErrorAnswer, OpenAiErrors
from headrace_gateway.http.openai.responses import events as response_events
from headrace_gateway.http.openai.responses.answer import Response
from headrace_gateway.http.openai.responses.counting import Counting, InputTokens
from headrace_gateway.http.openai.responses.request import CountRequest as ResponseCountRequest
from headrace_gateway.http.openai.responses.request import ResponseRequest
from headrace_gateway.http.openai.responses.routes import Deleted, Responses
from headrace_gateway.http.openapi import OpenApi, Operation
from headrace_gateway.http.probes import Probes
from headrace_gateway.http.rpc.calls import Rpc, RpcErrors, path_of, unary_methods

_OPENAI = (
    Operation(
        "/v1/chat/completions",
        "post",
        "Answer a chat.",
        chat.ChatCompletion,
        ChatRequest,
        chat.Chunk,
        ErrorAnswer,
    ),
    Operation(
        "/v1/completions",
        "post",
        "Complete texts.",
        completions.Completion,
        completions.CompletionRequest,
        completions.Completion,
        ErrorAnswer,
    ),
    Operation(
        "/v1/embeddings",
        "post",
        "Embed texts.",
        embeddings.EmbeddingList,
        embeddings.EmbeddingRequest,
        error=ErrorAnswer,
    ),
    Operation(
        "/v1/responses", "post", "Create a response.", Response, ResponseRequest, response_events.TextDelta, ErrorAnswer
    ),
    Operation(
        "/v1/responses/{name}",
        "get",
        "Describe a stored response.",
        Response,
        None,
        response_events.TextDelta,
        ErrorAnswer,
    ),
    Operation("/v1/responses/{name}", "delete", "Forget a stored response.", Deleted, error=ErrorAnswer),
    Operation(
        "/v1/responses/input_tokens",
        "post",
        "Count the tokens of the input of a response.",
        InputTokens,
        ResponseCountRequest,
        error=ErrorAnswer,
    ),
    Operation("/v1/responses/{name}/cancel", "post", "End a response.", Response, error=ErrorAnswer),
    Operation("/v1/models", "get", "List the models that run.", models.ModelList, error=ErrorAnswer),
    Operation("/v1/models/{name}", "get", "Describe a model.", models.Model, error=ErrorAnswer),
)
_ANTHROPIC = (
    Operation(
        "/v1/messages",
        "post",
        "Answer a conversation.",
        events.Message,
        MessageRequest,
        events.BlockDelta,
        anthropic_errors.ErrorAnswer,
    ),
    Operation(
        "/v1/messages/count_tokens",
        "post",
        "Count the tokens of a conversation.",
        messages.TokenCount,
        CountRequest,
        error=anthropic_errors.ErrorAnswer,
    ),
)
_OWN = (
    Operation("/metrics", "get", "Statistics of the engines for Prometheus.", error=ErrorAnswer),
    Operation("/healthz", "get", "200 while the gateway runs."),
    Operation("/readyz", "get", "200 while an engine serves a model."),
)
OPERATIONS = (*_OPENAI, *_ANTHROPIC, *_OWN)
"""What is described of HTTP."""


def application(clients: Clients, generations: Generations, calls: LiveCalls, access: Access, probes: Probes) -> Any:
    """Return the ASGI application.

    Args:
        clients: call the gateway's own services.
        generations: starts requests.
        calls: where requests are counted.
        access: who may call.
        probes: answers the probes of health, to everyone.
    """
    bodies, openai_form = Bodies(), OpenAiErrors()
    listed, conversations = models.Models(clients), messages.Messages(generations)
    responses = Responses(generations)
    handlers: dict[str, Handler] = {
        "/v1/responses": responses.create,
        "/v1/responses/input_tokens": Counting(generations, responses.before),
        "/v1/responses/{name}/cancel": responses.cancel,
        "get /v1/responses/{name}": responses.retrieve,
        "delete /v1/responses/{name}": responses.delete,
        "/v1/chat/completions": chat.Chat(generations),
        "/v1/completions": completions.Completions(generations, access),
        "/v1/embeddings": embeddings.Embeddings(clients),
        "/v1/models": listed.all,
        "/v1/models/{name}": listed.one,
        "/v1/messages": conversations.create,
        "/v1/messages/count_tokens": conversations.count,
        "/metrics": Metrics(clients, access, calls),
    }

    def endpoint(handler: Handler, form: ErrorForm = openai_form) -> Endpoint:
        return Endpoint(handler, form, calls, bodies, access)

    routes = [
        Route(_pattern(one.path), endpoint(handler, form), methods=[one.method.upper()])
        for operations, form in ((_OPENAI, openai_form), (_ANTHROPIC, AnthropicErrors()), (_OWN, openai_form))
        for one in operations
        if (handler := handlers.get(one.path) or handlers.get(f"{one.method} {one.path}")) is not None
    ]
    routes += [
        Route(path_of(one), endpoint(Rpc(clients, one), RpcErrors()), methods=["POST"]) for one in unary_methods()
    ]
    routes += [
        Route("/healthz", probes.alive, methods=["GET"]),
        Route("/readyz", probes.ready, methods=["GET"]),
        Route("/openapi.json", endpoint(OpenApi(OPERATIONS)), methods=["GET"]),
    ]
    routes += console_routes()
    return Router(routes, redirect_slashes=False, default=endpoint(_nothing))


def _pattern(path: str) -> str:
    """Return a path as starlette matches it: a name at its end may have slashes, as those of models do."""
    return path.replace("}", ":path}") if path.endswith("models/{name}") else path


async def _nothing(exchange: Exchange) -> None:
    path = exchange.request.url.path
    raise Failure(HTTPStatus.NOT_FOUND, f'there is nothing at "{path[:128]}"', "unknown_route")
