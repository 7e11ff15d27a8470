"""Verbs about adapters through a gateway: every engine that has the model, and an outcome for each."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from headrace_proto.v1 import model_pb2
from headrace_proto.v1 import model_service_pb2 as wire
from support.scripted.engine_answers import INITIAL
from unit.gateway.failures import carried, failing, fails

IN_USE = (grpc.StatusCode.FAILED_PRECONDITION, "LORA_IN_USE")


def listing(*names: str, engine: str) -> Any:
    """What an engine with these adapters lists."""

    async def answer(request: Any, context: Any) -> Any:
        adapters = [model_pb2.AdapterInfo(model_name=request.model_name, engine=engine, name=name) for name in names]
        return wire.ListAdaptersResponse(adapters=adapters)

    return answer


def answering(kind: Any, engine: str) -> Any:
    """What an engine answers to a verb about an adapter."""

    async def answer(request: Any, context: Any) -> Any:
        info = model_pb2.AdapterInfo(model_name=request.model_name, engine=engine, name=request.name, rank=4)
        return kind(engines=[info])

    return answer


@pytest.mark.parametrize("verb", ["LoadAdapter", "UnloadAdapter"])
async def test_a_verb_goes_to_all_and_tells_each_outcome(world: Any, verb: str) -> None:
    first, second = await world.engine(smol=INITIAL), await world.engine(smol=INITIAL)
    third = await world.engine()
    front = await world.gateway(e1=first, e2=second, e3=third)
    question, kind = getattr(wire, f"{verb}Request"), getattr(wire, f"{verb}Response")
    first.script[verb] = answering(kind, "e1")
    second.script[verb] = fails(*IN_USE, "in use")
    third.script[verb] = fails(grpc.StatusCode.NOT_FOUND, "UNKNOWN_MODEL", "none here")
    found = await getattr(front.models, verb)(question(model_name="smol", name="a"))
    assert [(each.engine, each.name, each.rank) for each in found.engines] == [("e1", "a", 4), ("e2", "", 0)]
    assert not found.engines[0].HasField("failure")
    assert carried(found.engines[1].failure).reported == IN_USE
    failure = await failing(getattr(front.models, verb)(question(model_name="smol", name="a", engine_ids=["e2"])))
    assert failure.reported == IN_USE


async def test_lists_are_joined_by_name_then_engine(world: Any) -> None:
    first, second = await world.engine(smol=INITIAL), await world.engine(smol=INITIAL)
    front = await world.gateway(e1=first, e2=second)
    first.script["ListAdapters"] = listing("b", "c", engine="e1")
    second.script["ListAdapters"] = listing("a", "b", engine="e2")
    found = await front.models.ListAdapters(wire.ListAdaptersRequest(model_name="smol"))
    names = [(each.name, each.engine) for each in found.adapters]
    assert names == [("a", "e2"), ("b", "e1"), ("b", "e2"), ("c", "e1")]
    second.script["ListAdapters"] = fails(grpc.StatusCode.NOT_FOUND, "UNKNOWN_MODEL", "none here")
    found = await front.models.ListAdapters(wire.ListAdaptersRequest(model_name="smol"))
    assert [(each.name, each.engine) for each in found.adapters] == [("b", "e1"), ("c", "e1")]
