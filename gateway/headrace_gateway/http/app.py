"""The routes, and what answers elsewhere."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from headrace_proto.server.intake import Intake
from starlette.routing import Route, Router

from headrace_gateway.forwarding.calls import LiveCalls
from headrace_gateway.http.endpoint import Endpoint
from headrace_gateway.http.exchange import Exchange
from headrace_gateway.http.failures import Failure
from headrace_gateway.http.generation import Generations
from headrace_gateway.http.openai.chat import Chat
from headrace_gateway.http.openai.completions import Completions
from headrace_gateway.http.openai.errors import OpenAiErrors
from headrace_gateway.http.openai.models import Models
from headrace_gateway.http.probes import Probes


def application(generations: Generations, calls: LiveCalls, probes: Probes) -> Any:
    """Return the ASGI application.

    Args:
        generations: starts requests.
        calls: where requests are counted.
        probes: answers the probes of health.
    """
    intake, form = Intake(), OpenAiErrors()
    models = Models(generations.client)

    def route(path: str, method: str, handler: Any) -> Route:
        return Route(path, Endpoint(handler, form, calls, intake), methods=[method])

    routes = [
        route("/v1/chat/completions", "POST", Chat(generations)),
        route("/v1/completions", "POST", Completions(generations)),
        route("/v1/models", "GET", models.all),
        route("/v1/models/{name:path}", "GET", models.one),
        Route("/healthz", probes.alive, methods=["GET"]),
        Route("/readyz", probes.ready, methods=["GET"]),
    ]
    return Router(routes, redirect_slashes=False, default=Endpoint(_nothing, form, calls, intake))


async def _nothing(exchange: Exchange) -> None:
    path = exchange.request.url.path
    raise Failure(HTTPStatus.NOT_FOUND, f'there is nothing at "{path[:128]}"', "unknown_route")
