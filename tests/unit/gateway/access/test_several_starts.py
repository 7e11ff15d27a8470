"""Calls that start several requests: all of them begin, or none."""

from __future__ import annotations

from typing import Any

import grpc
import httpx2 as httpx
import pytest
from headrace_gateway.access import callers
from headrace_gateway.access.access import Access
from headrace_gateway.access.callers import Caller
from headrace_gateway.access.keyring import Keyring
from headrace_gateway.status import CallError
from headrace_proto.v1 import request_service_pb2 as wire
from support.clocks.waiting import LIMIT
from support.scripted.engine_answers import refuse
from support.scripted.engine_server import ScriptedEngine
from unit.gateway.access.keyed import Auth, Keyed
from unit.gateway.conftest import Front, until

HEADER = "headrace-owner-limits"


async def complete(front: Front, auth: Auth, prompts: list[str], **fields: Any) -> httpx.Response:
    body = {"model": "smol", "prompt": prompts, **fields}
    async with httpx.AsyncClient(timeout=LIMIT) as client:
        url = f"http://{front.gateway.http.address}/v1/completions"
        return await client.post(url, json=body, headers=dict(auth))


def starts(engine: ScriptedEngine) -> list[str]:
    """What the engine was told with each start; validations, which come before them, tell it nothing."""
    calls = engine.asked("StartRequest")
    assert not any(HEADER in call.metadata for call in calls if call.request.validate_only)
    return [call.metadata.get(HEADER, "") for call in calls if not call.request.validate_only]


async def test_engines_are_told_how_many_follow(engine, keyed: Keyed) -> None:
    auth = keyed.key("web", concurrent_requests=5, waiting_requests=4, kept_bytes=4096)
    engine.owner = "web"
    front = await keyed.gateway(e1=engine, http=True)
    url = f"http://{front.gateway.http.address}/v1/completions"
    body = {"model": "smol", "prompt": ["a", "b", "c"], "stream": True}
    async with httpx.AsyncClient(timeout=LIMIT) as client, client.stream("POST", url, json=body, headers=dict(auth)):
        await until(engine, lambda: len(starts(engine)) == 3)
    assert starts(engine) == [
        f"key=web concurrent_requests=5:{left} waiting_requests=4:{left} kept_bytes=4096:0" for left in (2, 1, 0)
    ]
    assert not front.gateway.access.uses.expected


async def test_others_of_an_owner_are_told_what_is_expected(engine, keyed: Keyed) -> None:
    auth = keyed.key("web", concurrent_requests=5)
    front = await keyed.gateway(e1=engine)
    access = front.gateway.access
    callers.note(access.caller(dict(auth)))
    with access.starting_several(3):
        callers.note(callers.ANYONE)
        await front.requests.StartRequest(wire.StartRequestRequest(model_name="smol", text="a"), metadata=auth)
    await front.requests.StartRequest(wire.StartRequestRequest(model_name="smol", text="a"), metadata=auth)
    assert starts(engine) == ["key=web concurrent_requests=5:3", "key=web concurrent_requests=5:0"]


async def test_nothing_begins_where_the_first_is_refused(engine, keyed: Keyed) -> None:
    auth = keyed.key("web", concurrent_requests=4)

    async def full(request: Any, context: Any) -> Any:
        if request.validate_only:
            return wire.StartRequestResponse()
        return await refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", limit="concurrent_requests")

    engine.script["StartRequest"] = full
    front = await keyed.gateway(e1=engine, http=True)
    assert (await complete(front, auth, ["a", "b", "c"])).status_code == 429
    assert starts(engine) == ["key=web concurrent_requests=4:2"]
    assert not front.gateway.access.uses.expected


async def test_a_minute_s_requests_are_taken_at_once(engine, keyed: Keyed) -> None:
    auth = keyed.key("web", requests_per_minute=4)
    front = await keyed.gateway(e1=engine, http=True)
    engine.script["StartRequest"] = lambda _, context: refuse(
        context, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"
    )
    codes = [(await complete(front, auth, ["a", "b", "c"])).status_code for _ in range(3)]
    assert codes == [400, 400, 429]  # Each that was refused counts as one: 3 and then 2 are left.
    assert (len(engine.asked("StartRequest")), starts(engine)) == (2, [])  # The first wrong one is the last asked for.
    refused = await complete(front, auth, ["a", "b", "c"])
    assert '"web" has used up its 4 requests a minute' in refused.json()["error"]["message"]
    assert 1 <= int(refused.headers["retry-after"]) <= 16


def test_starts_beyond_those_announced_are_checked(keyed: Keyed, tmp_path) -> None:
    auth = keyed.key("web", requests_per_minute=2)
    access = Access(Keyring(tmp_path / "keys.toml"))
    caller: Caller = access.caller(dict(auth))
    callers.note(caller)
    try:
        with access.starting_several(2):
            for _ in range(2):
                access.check(caller, "StartRequest", wire.StartRequestRequest())
                with access.starting("e1") as metadata:
                    assert metadata == ()
            with pytest.raises(CallError, match="requests a minute"):
                access.check(caller, "StartRequest", wire.StartRequestRequest())
        assert not access.uses.expected
    finally:
        callers.note(callers.ANYONE)
