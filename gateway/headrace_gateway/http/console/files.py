"""Answers with the console's files. They hold no secrets: what they show is asked for with the visitor's API key."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from importlib import resources
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

PATH = "/console/"

_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".LICENSE": "text/plain; charset=utf-8",
}
_HEADERS = {
    # Styles are set by scripts, which the policy does not count as inline; uPlot sets them so too.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


@dataclass(frozen=True)
class _File:
    content: bytes
    kind: str
    tag: str


def console_routes() -> list[Route]:
    """Return the routes of the console's files, and of the way to them."""
    routes = [Route(PATH + name, _answer, methods=["GET"], name=name) for name in _files()]
    routes += [Route(PATH, _answer, methods=["GET"], name="index.html")]
    return routes + [Route(path, _to_console, methods=["GET"]) for path in ("/", PATH.rstrip("/"))]


async def _answer(request: Request) -> Response:
    file = _files()[request.url.path.removeprefix(PATH) or "index.html"]
    headers = _HEADERS | {"etag": file.tag}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    return Response(file.content, headers=headers | {"content-type": file.kind})


async def _to_console(request: Request) -> Any:
    return RedirectResponse(PATH)


@cache
def _files() -> dict[str, _File]:
    found = {}
    for one in resources.files(__package__).joinpath("static").iterdir():
        content = one.read_bytes()
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        found[one.name] = _File(content, _KINDS[one.name[one.name.index(".") :]], tag)
    return found
