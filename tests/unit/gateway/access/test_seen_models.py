"""Which models a key sees: those that it may use."""

from __future__ import annotations

import httpx2 as httpx
from headrace_proto.v1 import engine_service_pb2, model_service_pb2, request_service_pb2
from support.clocks.waiting import LIMIT
from support.scripted.engine_answers import RUNNING
from unit.gateway.access.keyed import Keyed
from unit.gateway.conftest import World
from unit.gateway.failures import failing


async def test_lists_have_the_models_of_the_key(world: World, keyed: Keyed) -> None:
    engine = await world.engine(smol=RUNNING, large=RUNNING)
    some, every = keyed.key("web", models=["smol*"]), keyed.key("ops")
    front = await keyed.gateway(e1=engine, http=True)
    url = f"http://{front.gateway.http.address}/v1/models"
    for auth, names in ((some, ["smol"]), (every, ["large", "smol"])):
        listed = await front.models.ListModels(model_service_pb2.ListModelsRequest(), metadata=auth)
        assert [model.model_name for model in listed.models] == names
        stats = await front.facts.GetEngineStat(engine_service_pb2.GetEngineStatRequest(), metadata=auth)
        assert sorted(stat.model_name for stat in stats.stats) == names
        async with httpx.AsyncClient(timeout=LIMIT) as client:
            answer = await client.get(url, headers=dict(auth))
            assert [model["id"] for model in answer.json()["data"]] == names
            assert (await client.get(f"{url}/large", headers=dict(auth))).is_success == (names != ["smol"])


async def test_a_watch_of_all_models_tells_of_those_of_the_key(world: World, keyed: Keyed) -> None:
    engine = await world.engine(large=RUNNING, smol=RUNNING)
    auth = keyed.key("web", models=["smol"])
    front = await keyed.gateway(e1=engine)
    watch = front.models.WatchModel(model_service_pb2.WatchModelRequest(), metadata=auth)
    assert (await watch.read()).model.model_name == "smol"
    watch.cancel()


async def test_requests_to_other_models_are_not_listed(world: World, keyed: Keyed) -> None:
    engine = await world.engine(smol=RUNNING, large=RUNNING)
    every, some = keyed.key("ops", owner="team"), keyed.key("web", owner="team", models=["smol"])
    front = await keyed.gateway(e1=engine)
    for number in range(5):
        engine.hold(f"r{number}", model_name="large" if number % 2 else "smol", owner="team", arrival_ms=number + 1)
    found: list[str] = []
    question = request_service_pb2.ListRequestsRequest(page_size=2)
    while True:
        page = await front.requests.ListRequests(question, metadata=some)
        found += [state.request.request_id for state in page.requests]
        if not (token := page.next_page_token):
            break
        question.page_token = token
    assert found == ["r4", "r2", "r0"]
    listed = await front.requests.ListRequests(request_service_pb2.ListRequestsRequest(), metadata=every)
    assert len(listed.requests) == 5


async def test_an_admin_installs_models_of_its_key_only(engine, keyed: Keyed) -> None:
    auth = keyed.key("ops", admin=True, models=["smol*"])
    front = await keyed.gateway(e1=engine)
    request = model_service_pb2.InstallModelRequest()
    request.config.model_name = "large"
    refused = await failing(front.models.InstallModel(request, metadata=auth))
    assert refused.reason == "NOT_ALLOWED"
    assert 'API key "ops" may not use model "large"' in refused.message
