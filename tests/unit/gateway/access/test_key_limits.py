"""Limits of API keys that are kept by tokens, and by the engines."""

from __future__ import annotations

from typing import Any

import grpc
import httpx2 as httpx
import pytest
from headrace_gateway.access import keyring
from headrace_gateway.access import uses as module
from headrace_gateway.access.uses import OwnerUses, Use
from headrace_proto.v1 import request_service_pb2 as wire
from headrace_proto.v1.session_pb2 import OwnerUsage
from support.clocks.clock import FakeClock
from support.clocks.waiting import LIMIT, eventually
from support.scripted.engine_answers import refuse
from support.scripted.engine_server import ScriptedEngine
from unit.gateway.access.keyed import Auth, Keyed
from unit.gateway.conftest import Front, until
from unit.gateway.failures import failing

REQUEST = wire.StartRequestRequest(model_name="smol", text="a")
HEADER = "headrace-owner-limits"


async def start(front: Front, auth: Auth) -> Any:
    return await front.requests.StartRequest(REQUEST, metadata=auth)


async def report(front: Front, engine: ScriptedEngine, owner: str, **figures: int) -> None:
    """Have an engine report what an owner uses, and wait until the gateway has applied it."""
    await until(engine, lambda: bool(engine.sessions) and engine.side.wants_usage)
    uses = front.gateway.access.uses
    tokens, requests = figures.get("sampled_tokens", 0), figures.get("requests", 0)
    engine.send_usage(owner, **figures)
    await eventually(
        lambda: uses.sampled_tokens[owner] >= tokens and uses.total(owner).requests >= requests, "it is not applied"
    )


async def test_tokens_are_charged_as_they_are_used(engine, keyed: Keyed) -> None:
    auth, other = keyed.key("web", owner="team", tokens_per_minute=600), keyed.key("app")
    front = await keyed.gateway(e1=engine)
    await start(front, auth)
    await report(front, engine, "team", prompt_tokens=100, sampled_tokens=1100)
    refused = await failing(start(front, auth))
    assert refused.reported == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")
    assert 0 < refused.retry_seconds <= 61
    assert refused.message.startswith('API key "web" has used up its 600 tokens a minute: try again in')
    await start(front, other)


async def test_an_engine_is_told_the_limits_and_what_is_elsewhere(first, second, keyed: Keyed) -> None:
    auth = keyed.key("web", owner="team", concurrent_requests=5, waiting_requests=3, kept_bytes=4096)
    plain = keyed.key("app")
    front = await keyed.gateway(e1=first, e2=second)
    await report(front, second, "team", requests=2, waiting=1, bytes=1000)
    for metadata in (auth, auth, plain):
        await start(front, metadata)
    sent = [call.metadata.get(HEADER) for call in first.asked("StartRequest")]
    assert "key=web concurrent_requests=5:2 waiting_requests=3:1 kept_bytes=4096:1000" in sent
    every = [*first.asked("StartRequest"), *second.asked("StartRequest")]
    assert sum(HEADER in call.metadata for call in every) == 2


async def test_another_engine_does_not_get_around_a_limit(first, second, keyed: Keyed) -> None:
    auth = keyed.key("web", concurrent_requests=1)

    async def full(request: Any, context: Any) -> None:
        await refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", limit="concurrent_requests")

    first.script["StartRequest"] = second.script["StartRequest"] = full
    front = await keyed.gateway(e1=first, e2=second)
    assert (await failing(start(front, auth))).reason == "QUEUE_FULL"
    assert len(first.asked("StartRequest")) + len(second.asked("StartRequest")) == 1


async def test_limits_change_with_the_file(engine, keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyring, "LOOK_SECONDS", 0.0)
    auth = keyed.key("web", concurrent_requests=5)
    front = await keyed.gateway(e1=engine)
    await start(front, auth)
    keyed.change("concurrent_requests = 5", "concurrent_requests = 61")
    await start(front, auth)
    sent = [call.metadata[HEADER] for call in engine.asked("StartRequest")]
    assert sent == ["key=web concurrent_requests=5:0", "key=web concurrent_requests=61:0"]


@pytest.mark.parametrize("right", ["admin", "metrics"])
async def test_keys_with_a_right_see_what_others_use(engine, keyed: Keyed, right: str) -> None:
    auth = keyed.key("web", owner="team", tokens_per_minute=60000)
    admin = keyed.key("ops", **{right: True}, models=["*" if right == "admin" else "-"])
    front = await keyed.gateway(e1=engine, http=True)
    await report(front, engine, "team", requests=2, waiting=1, bytes=77, prompt_tokens=3, sampled_tokens=4)
    url = f"http://{front.gateway.http.address}/metrics"
    async with httpx.AsyncClient(timeout=LIMIT) as client:
        told = (await client.get(url, headers=dict(admin))).text.splitlines()
        hidden = (await client.get(url, headers=dict(auth))).text
    assert {
        'headrace_owner_requests{owner="team"} 2.0',
        'headrace_owner_requests_waiting{owner="team"} 1.0',
        'headrace_owner_bytes{owner="team"} 77.0',
        'headrace_owner_prompt_tokens_total{owner="team"} 3.0',
        'headrace_owner_sampled_tokens_total{owner="team"} 4.0',
        'headrace_owner_limit{limit="tokens_per_minute",owner="team"} 60000.0',
    } <= set(told)
    assert "headrace_owner" not in hidden


def test_placed_requests_count_until_they_are_reported() -> None:
    charged: list[tuple[str, int]] = []
    clock = FakeClock()
    uses = OwnerUses(lambda owner, tokens: charged.append((owner, tokens)), clock)
    with uses.placing("e1", "a"):
        assert uses.total("a").requests == 1
        assert uses.total("a", without="e1") == Use()
    assert uses.total("a").requests == 1
    clock.advance(0.05)
    uses.update("e1", [OwnerUsage(owner="a", requests=1, prompt_tokens=5)])
    assert uses.total("a").requests == 1
    with uses.placing("e1", "a"):
        pass
    clock.advance(1)
    assert uses.total("a").requests == 1
    uses.update("e1", [OwnerUsage(owner="a", prompt_tokens=5, sampled_tokens=2)])
    uses.begin("e1")
    uses.update("e1", [OwnerUsage(owner="a", sampled_tokens=1)])
    assert charged == [("a", 5), ("a", 2), ("a", 1)]
    uses.leave("e1")
    assert uses.total("a") == Use()


def test_engines_may_count_an_owner_anew() -> None:
    charged: list[int] = []
    uses = OwnerUses(lambda _, tokens: charged.append(tokens))
    for count, prompt, sampled in ((1, 100, 1000), (1, 101, 1000), (2, 5, 2), (3, 5, 2), (3, 5, 3)):
        uses.update("e1", [OwnerUsage(owner="a", prompt_tokens=prompt, sampled_tokens=sampled, count=count)])
    assert charged == [1100, 1, 7, 7, 1]
    assert (uses.prompt_tokens["a"], uses.sampled_tokens["a"]) == (111, 1005)


def test_quiet_owners_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REMEMBERED", 2)
    uses = OwnerUses(lambda *_: None)
    uses.update("e1", [OwnerUsage(owner="busy", requests=1, sampled_tokens=1)])
    for number in range(20):
        uses.update("e1", [OwnerUsage(owner=f"o{number}", sampled_tokens=1)])
    assert uses.total("busy") == Use(requests=1)
    assert set(uses.sampled_tokens) == set(uses.prompt_tokens) == {"o18", "o19"}
    assert len(uses._engines["e1"]._reported) == 3
    uses.begin("e1")
    uses.update("e1", [OwnerUsage(owner="o18")])
    assert len(uses._engines["e1"]._reported) == 1
