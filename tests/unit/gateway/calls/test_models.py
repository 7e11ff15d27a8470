"""Model verbs through the gateway: to every engine or those named, answered for each."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from headrace_proto.v1 import model_service_pb2 as wire
from support.scripted.engine_answers import INITIAL, RELEASED, RUNNING, STOPPED
from unit.gateway.conftest import until
from unit.gateway.failures import carried, failing, fails

UNSPECIFIED = 0


@pytest.fixture
async def first(world):
    return await world.engine(smol=INITIAL)


@pytest.fixture
async def second(world):
    return await world.engine(smol=INITIAL)


@pytest.fixture
async def front(world, first, second):
    return await world.gateway(e1=first, e2=second)


def install(name="new", **more):
    request = wire.InstallModelRequest(**more)
    request.config.model_name = name
    return request


def start(**more):
    return wire.StartModelRequest(model_name="smol", **more)


def states(infos):
    return {info.engine: info.state for info in infos}


async def test_a_verb_goes_to_every_engine_named_as_in_the_list(front, first, second):
    answer = await front.models.InstallModel(install(no_wait=True))
    assert states(answer.engines) == {"e1": INITIAL, "e2": INITIAL}
    assert [info.model_name for info in answer.engines] == ["new", "new"]
    for engine in (first, second):
        (heard,) = engine.asked("InstallModel")
        assert heard.request.no_wait
        assert heard.request.config.model_name == "new"


async def test_every_verb_brings_the_model_to_its_state(front, first, second):
    started = await front.models.StartModel(start())
    stopped = await front.models.StopModel(wire.StopModelRequest(model_name="smol"))
    got = await front.models.GetModel(wire.GetModelRequest(model_name="smol"))
    released = await front.models.ReleaseModel(wire.ReleaseModelRequest(model_name="smol"))
    found = [states(answer.engines) for answer in (started, stopped, got, released)]
    assert found == [{"e1": state, "e2": state} for state in (RUNNING, STOPPED, STOPPED, RELEASED)]
    assert first.models == second.models == {}


async def test_engine_ids_address_and_are_not_passed_on(front, first, second):
    answer = await front.models.StartModel(start(engine_ids=["e2"]))
    assert states(answer.engines) == {"e2": RUNNING}
    assert not first.asked("StartModel")
    (heard,) = second.asked("StartModel")
    assert not heard.request.engine_ids


async def test_the_answer_has_the_order_of_engine_ids(front):
    answer = await front.models.GetModel(wire.GetModelRequest(model_name="smol", engine_ids=["e2", "e1"]))
    assert [info.engine for info in answer.engines] == ["e2", "e1"]


@pytest.mark.parametrize("verb", ["InstallModel", "StartModel", "StopModel", "ReleaseModel", "GetModel", "ListModels"])
async def test_an_unknown_engine_is_refused_before_anything_is_done(front, first, verb):
    request = getattr(wire, f"{verb}Request")(engine_ids=["e1", "e9"])
    failure = await failing(getattr(front.models, verb)(request))
    assert failure.reported == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_ENGINE")
    assert verb == "ListModels" or not first.asked(verb)  # polls list models


async def test_an_engine_named_twice_is_refused(front):
    failure = await failing(front.models.StartModel(start(engine_ids=["e1", "e1"])))
    assert failure.fields == ["engine_ids"]


async def test_a_failing_engine_is_an_entry_with_failure_and_state(front, first):
    first.script["StartModel"] = fails(
        grpc.StatusCode.FAILED_PRECONDITION, "OUT_OF_MEMORY", "needs 11.2 GiB, 6.0 are free"
    )
    answer = await front.models.StartModel(start())
    assert states(answer.engines) == {"e1": INITIAL, "e2": RUNNING}
    failure = carried(answer.engines[0].failure)
    assert failure.reported == (grpc.StatusCode.FAILED_PRECONDITION, "OUT_OF_MEMORY")
    assert failure.message == "needs 11.2 GiB, 6.0 are free"
    assert not answer.engines[1].HasField("failure")


async def test_a_silent_engine_is_an_entry_without_a_state(front, first):
    await first.stop()
    for answer in (
        await front.models.InstallModel(install()),
        await front.models.StartModel(start()),
        await front.models.GetModel(wire.GetModelRequest(model_name="smol")),
    ):
        info = answer.engines[0]
        assert (info.engine, info.state) == ("e1", UNSPECIFIED)
        assert info.model_name
        assert carried(info.failure).reported == (grpc.StatusCode.UNAVAILABLE, "ENGINE_UNREACHABLE")
        assert answer.engines[1].state != UNSPECIFIED


async def test_a_verb_failing_everywhere_has_the_first_status(front, first, second):
    first.script["StartModel"] = fails(grpc.StatusCode.FAILED_PRECONDITION, "BAD_MODEL", "first")
    second.script["StartModel"] = fails(grpc.StatusCode.FAILED_PRECONDITION, "OUT_OF_MEMORY", "second")
    assert (await failing(front.models.StartModel(start()))).message == "first"
    assert (await failing(front.models.StartModel(start(engine_ids=["e2", "e1"])))).message == "second"


async def test_engines_without_the_model_are_left_out(front, first, second):
    first.models.clear()
    for verb, state in (
        ("StartModel", RUNNING),
        ("GetModel", RUNNING),
        ("StopModel", STOPPED),
        ("ReleaseModel", RELEASED),
    ):
        answer = await getattr(front.models, verb)(getattr(wire, f"{verb}Request")(model_name="smol"))
        assert states(answer.engines) == {"e2": state}


async def test_a_model_that_no_engine_has_is_unknown(front, first, second):
    first.models.clear()
    second.models.clear()
    for verb in ("StartModel", "GetModel", "StopModel", "ReleaseModel"):
        failure = await failing(getattr(front.models, verb)(getattr(wire, f"{verb}Request")(model_name="smol")))
        assert failure.reported == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_MODEL")


async def test_a_named_engine_without_the_model_is_a_failed_entry(front, first):
    first.models.clear()
    answer = await front.models.StartModel(start(engine_ids=["e1", "e2"]))
    assert states(answer.engines) == {"e1": RELEASED, "e2": RUNNING}
    assert carried(answer.engines[0].failure).reason == "UNKNOWN_MODEL"


async def test_a_silent_only_candidate_engine_is_reported(front, first, second):
    first.models.clear()
    await second.stop()
    failure = await failing(front.models.StartModel(start()))
    assert failure.reported == (grpc.StatusCode.UNAVAILABLE, "ENGINE_UNREACHABLE")


async def test_a_verb_returns_with_the_gateways_view_up_to_date(front):
    await front.models.StartModel(start(engine_ids=["e2"]))
    views = {engine.name: engine.view.state("smol") for engine in front.gateway.pool.engines}
    assert views == {"e1": INITIAL, "e2": RUNNING}


async def test_models_are_listed_by_name_then_engine(front, first, second):
    first.models, second.models = {"b": RUNNING, "a": INITIAL}, {"c": INITIAL, "a": STOPPED}
    answer = await front.models.ListModels(wire.ListModelsRequest())
    assert [(info.model_name, info.engine) for info in answer.models] == [
        ("a", "e1"),
        ("a", "e2"),
        ("b", "e1"),
        ("c", "e2"),
    ]
    only = await front.models.ListModels(wire.ListModelsRequest(engine_ids=["e2"]))
    assert [(info.model_name, info.engine) for info in only.models] == [("a", "e2"), ("c", "e2")]


async def test_the_list_shows_an_engine_that_does_not_answer(front, first, second):
    await first.stop()
    answer = await front.models.ListModels(wire.ListModelsRequest())
    assert [(info.model_name, info.engine, info.state) for info in answer.models] == [
        ("", "e1", UNSPECIFIED),
        ("smol", "e2", INITIAL),
    ]
    assert carried(answer.models[0].failure).reason == "ENGINE_UNREACHABLE"
    await second.stop()
    assert (await failing(front.models.ListModels(wire.ListModelsRequest()))).reason == "ENGINE_UNREACHABLE"


class TestInspect:
    """InspectModel asks one engine."""

    async def test_the_first_that_answers(self, front, first, second):
        answer = await front.models.InspectModel(wire.InspectModelRequest(model_path="/m"))
        assert (answer.engine, answer.description.architecture) == ("e1", "found at /m")
        await first.stop()
        answer = await front.models.InspectModel(wire.InspectModelRequest(model_path="/m"))
        assert answer.engine == "e2"
        await second.stop()
        assert (
            await failing(front.models.InspectModel(wire.InspectModelRequest(model_path="/m")))
        ).reason == "ENGINE_UNREACHABLE"

    async def test_the_one_named(self, front, first, second):
        answer = await front.models.InspectModel(wire.InspectModelRequest(model_path="/m", engine_id="e2"))
        assert answer.engine == "e2"
        assert second.asked("InspectModel")[0].request.engine_id == ""
        failure = await failing(front.models.InspectModel(wire.InspectModelRequest(engine_id="e9")))
        assert failure.reason == "UNKNOWN_ENGINE"

    async def test_a_refusal_is_an_answer(self, front, first, second):
        first.script["InspectModel"] = fails(grpc.StatusCode.FAILED_PRECONDITION, "BAD_MODEL")
        assert (
            await failing(front.models.InspectModel(wire.InspectModelRequest(model_path="/m")))
        ).reason == "BAD_MODEL"
        assert not second.asked("InspectModel")


async def test_a_verb_that_is_cut_is_cut_at_the_engines(front, first):
    async def slow(request, context):
        await asyncio.Event().wait()

    first.script["StartModel"] = slow
    call = front.models.StartModel(start())
    task = asyncio.ensure_future(call)
    await until(first, lambda: first.asked("StartModel"))
    task.cancel()
    await until(first, lambda: "StartModel" in first.cancelled)
