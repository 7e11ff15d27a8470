"""Whose requests are whose, through real servers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from headrace import Client, ResultQueue
from headrace.errors import AuthError, NotFoundError

from .conftest import MODEL, Secured

Connected = Callable[[str], Client]


def read(queue: ResultQueue) -> list[int]:
    """All ids of a queue, to its end."""
    ids: list[int] = []
    while (element := queue.Get()) is not None:
        ids += element.ids_from_generate
    return ids


def test_a_request_exists_for_its_owner_alone(connected: Connected) -> None:
    web, job, app = map(connected, ("web", "job", "app"))
    _, queue = web.start_request(MODEL, "Hello", max_new_tokens=5, ignore_eos=True)
    ids = read(queue)
    assert len(ids) == 5
    handle = queue.handle
    assert [request.handle for request in job.list_requests()] == [handle]
    assert list(app.list_requests()) == []
    assert read(job.open_queue(handle)) == ids
    for call in (app.stop_request, lambda one: read(app.open_queue(one))):
        with pytest.raises(NotFoundError):
            call(handle)
    app.release_request(handle)
    assert [request.handle for request in web.list_requests()] == [handle]
    job.release_request(handle)
    assert list(web.list_requests()) == []


def test_one_request_id_is_a_request_of_each_owner(connected: Connected) -> None:
    web, app = connected("web"), connected("app")
    queues = [
        one.start_request(
            MODEL, text, request_id="7d444840-9dc0-11d1-b245-5ffdce74fad2", max_new_tokens=2, ignore_eos=True
        )[1]
        for one, text in ((web, "One"), (app, "Another"))
    ]
    assert len({queue.handle for queue in queues}) == 2
    for queue, client in zip(queues, (web, app), strict=True):
        assert len(read(queue)) == 2
        client.release_request(queue.handle)


def test_use_and_administration_are_apart(connected: Connected) -> None:
    with pytest.raises(AuthError, match='API key "web" may not call'):
        connected("web").stop_model(MODEL)
    with pytest.raises(AuthError, match=f'API key "app" may not use model "other"; it may use: {MODEL}'):
        connected("app").start_request("other", "Hello")
    assert [model.model_name for model in connected("web").list_models()] == [MODEL]


def test_neither_keys_nor_secrets_are_logged(secured: Secured, connected: Connected) -> None:
    for name in ("web", "ops"):
        list(connected(name).list_models())
    logged = secured.gateway.text + secured.engine.text
    assert all(key not in logged for key in secured.keys.values())
    assert "c0ffee" not in logged
