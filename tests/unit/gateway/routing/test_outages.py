"""Models that no engine can take requests for now: what is an outage, and what a mistake."""

from __future__ import annotations

import grpc
import pytest
from headrace_gateway.engines.engine import Engine
from headrace_gateway.engines.view import EngineView
from headrace_gateway.forwarding.absence import no_engine_for
from headrace_gateway.forwarding.model_refusals import unknown_model
from headrace_gateway.options import EngineAddress
from headrace_proto.v1 import model_pb2
from headrace_proto.v1 import request_service_pb2 as wire
from support.scripted.engine_answers import INITIAL, RUNNING, STOPPED, refuse
from unit.gateway.failures import failing
from unit.gateway.placing import placed, request

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


@pytest.fixture
async def front(world, first, second):
    """Polls only when it has cause to: what it knows is as old as the test makes it."""
    return await world.gateway(e1=first, e2=second)


async def test_a_model_that_no_engine_has_is_unknown(front, first, second):
    first.models, second.models = {"other": RUNNING}, {}
    failure = await failing(front.requests.StartRequest(request()))
    assert failure.reported == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_MODEL")
    assert failure.facts["model_name"] == "smol"
    assert failure.message == 'no model "smol" on any engine (there are: other): install it first (InstallModel)'
    assert (
        await failing(front.requests.Generate(wire.GenerateRequest(model_name="smol")))
    ).reported == failure.reported


def test_of_many_models_that_there_are_a_refusal_names_a_few():
    names = [f"m{number:03}" for number in range(100)]
    assert "(there are: m000, m001, m002, m003, m004, m005, m006, m007 and 92 more)" in str(unknown_model("x", names))
    assert str(unknown_model("x")) == 'no model "x" on any engine: install it first (InstallModel)'


async def test_a_model_that_runs_nowhere_is_told_with_its_state(front, first, second):
    first.models["smol"], second.models["smol"] = STOPPED, INITIAL
    failure = await failing(front.requests.StartRequest(request()))
    assert failure.reported == (grpc.StatusCode.FAILED_PRECONDITION, "MODEL_NOT_RUNNING")
    assert failure.details["ModelStateInfo"].state == INITIAL
    assert failure.details["ModelStateInfo"].model_name == "smol"
    assert failure.message == 'model "smol" is INITIAL: start it first (StartModel)'


@pytest.mark.parametrize(
    ("state", "way"),
    [
        (model_pb2.MODEL_STATE_INSTALLING, "wait until it is INITIAL (WatchModel), then start it (StartModel)"),
        (
            model_pb2.MODEL_STATE_STOPPING,
            "it takes no more requests. Wait until it is STOPPED (WatchModel), then start it (StartModel)",
        ),
        (
            model_pb2.MODEL_STATE_FAILED,
            "it failed. Install it again, with another config where that helps (InstallModel), "
            "then start it (StartModel)",
        ),
    ],
)
async def test_a_model_that_runs_nowhere_is_told_with_what_to_do(front, first, second, state, way):
    first.models["smol"] = second.models["smol"] = state
    name = model_pb2.ModelState.Name(state).removeprefix("MODEL_STATE_")
    failure = await failing(front.requests.StartRequest(request()))
    assert failure.message == f'model "smol" is {name}: {way}'


@pytest.mark.parametrize("state", ["INSTALLING", "INITIAL", "STARTING"])
async def test_b4_a_model_on_its_way_to_running_is_an_outage(front, first, second, state):
    first.models["smol"] = second.models["smol"] = model_pb2.ModelState.Value(f"MODEL_STATE_{state}")
    first.wanted["smol"] = RUNNING
    for call in (
        front.requests.StartRequest(request()),
        front.requests.Generate(wire.GenerateRequest(model_name="smol")),
    ):
        failure = await failing(call)
        assert failure.reported == (UNAVAILABLE, "MODEL_STARTING")
        assert failure.retry_seconds == 1.0
        assert failure.message == (
            f'model "smol" is {state}: it takes requests once it is RUNNING. Try again, or watch it (WatchModel)'
        )


async def test_b4_an_engine_that_restarted_unseen_is_an_outage(front, first, second):
    """The gateway still takes the model for RUNNING; the engines' own refusals are told."""

    async def refused(request_, context):
        await refuse(context, UNAVAILABLE, "MODEL_STARTING")

    first.script["StartRequest"] = second.script["StartRequest"] = refused
    assert (await failing(front.requests.StartRequest(request()))).reported == (UNAVAILABLE, "MODEL_STARTING")


async def test_b4_a_model_of_an_unreached_engine_is_not_unknown(world):
    front = await world.gateway(e1=await world.engine(other=RUNNING), e2="127.0.0.1:1")
    assert (await failing(front.requests.StartRequest(request()))).reported == (UNAVAILABLE, "NO_ENGINE")


async def test_a_model_that_failed_says_why():
    info = model_pb2.ModelInfo(model_name="smol", state=model_pb2.MODEL_STATE_FAILED)
    info.failure.message = "no memory: lower max_length."
    engine = Engine(EngineAddress.parse("e1=127.0.0.1:1"), 1.0, lambda: None)
    engine.view = EngineView(reachable=True, models={"smol": info})
    refusal = no_engine_for([engine], "smol")
    assert refusal.status.message.startswith('model "smol" is FAILED: no memory: lower max_length. Install it again')
    await engine.channel.close()


async def test_without_an_engine_that_answers_there_is_none(front, first, second):
    await first.stop()
    await second.stop()
    failure = await failing(front.requests.StartRequest(request()))
    assert failure.reported == (UNAVAILABLE, "NO_ENGINE")
    assert failure.retry_seconds == 1.0


async def test_a_model_whose_engine_is_gone_for_now_is_worth_a_retry(front, first, second):
    second.models.clear()
    await front.gateway.pool.refresh()
    await first.stop()
    assert (await failing(front.requests.StartRequest(request()))).reported == (UNAVAILABLE, "NO_ENGINE")


async def test_a_new_gateway_asks_its_engines_before_it_refuses(world, first):
    front = await world.gateway(settled=False, e1=first)
    assert await placed(front) == "e1"
