"""Where retries of a start go, and where calls that only need a tokenizer go."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from headrace_proto.v1 import engine_service_pb2 as facts_wire
from headrace_proto.v1 import request_service_pb2 as wire
from support.clocks.waiting import happens
from support.scripted.engine_answers import INITIAL, RUNNING, refuse
from unit.gateway.conftest import until
from unit.gateway.failures import failing
from unit.gateway.placing import placed, request


@pytest.fixture
async def front(world, first, second):
    return await world.gateway(e1=first, e2=second)


class TestRetries:
    """A start with attempt above 0 goes to the engine that knows it, else to the one that its key chooses.

    That is e1 for r4, and for every hand-over of r8.
    """

    async def test_the_engine_that_knows_it_gets_it_whatever_its_load(self, front, second):
        held = second.hold("r4")
        second.running = 100
        await front.gateway.pool.refresh()
        answer = await front.requests.StartRequest(request("r4", attempt=1))
        assert answer.request.handle == f"e2{held.handle.removeprefix('self')}"

    async def test_also_through_a_gateway_that_was_just_started(self, world, first, second):
        second.hold("r4")
        second.running = 100
        other = await world.gateway(settled=False, e1=first, e2=second)
        assert await placed(other, request_id="r4", attempt=1) == "e2"

    async def test_one_that_nobody_knows_is_placed(self, front):
        went = [await placed(front, request_id="a", attempt=1), await placed(front, request_id="b")]
        assert sorted(went) == ["e1", "e2"]

    async def test_retries_through_two_gateways_at_once_meet_on_one_engine(self, world, front, first, second):
        """Neither finds the other by asking, so both must choose alike, whatever they know of loads and turns."""
        other = await world.gateway(e1=first, e2=second)
        await placed(front, request_id="only here")
        went = []
        for key in (f"r{number}" for number in range(8)):
            starts = placed(front, request_id=key, attempt=1), placed(other, request_id=key, attempt=2)
            engines = set(await asyncio.gather(*starts))
            assert len(engines) == 1, key
            went += engines
        assert set(went) == {"e1", "e2"}

    async def test_retries_meet_on_the_next_engine_if_the_first_refuses(self, world, front, first, second):
        other = await world.gateway(e1=first, e2=second)
        went = await placed(front, request_id="r0", attempt=1)
        engine, left = (first, "e2") if went == "e1" else (second, "e1")
        engine.requests.clear()
        engine.models.clear()  # What the gateways know is older.
        starts = placed(front, request_id="r0", attempt=1), placed(other, request_id="r0", attempt=1)
        assert await asyncio.gather(*starts) == [left, left]

    async def test_another_owners_request_of_that_id_is_not_it(self, front, first, second):
        second.hold("r4", owner="ann")
        second.running = 100
        await front.gateway.pool.refresh()
        assert await placed(front, request_id="r4", attempt=1) == "e1"

    async def test_an_earlier_handover_is_not_it(self, front, first, second):
        first.hold("r4", handover=1)
        second.hold("r4", handover=0)
        first.running = 100
        await front.gateway.pool.refresh()
        assert await placed(front, request_id="r4", attempt=1, handover=1) == "e1"
        assert await placed(front, request_id="r4", attempt=1, handover=2) == "e2"

    async def test_the_first_attempt_asks_nobody(self, front, first, second):
        await placed(front, request_id="r4")
        assert not first.asked("GetRequest")
        assert not second.asked("GetRequest")

    async def test_an_engine_that_does_not_answer_does_not_hold_it_up(self, front, first, second):
        second.hold("r4")
        await first.stop()
        assert await placed(front, request_id="r4", attempt=2) == "e2"

    async def test_a_released_request_is_still_where_its_key_is_remembered(self, front, second):
        held = second.hold("r8", handover=2)
        await front.requests.ReleaseRequest(wire.ReleaseRequestRequest(handle=f"e2{held.handle.removeprefix('self')}"))
        second.running = 100
        await front.gateway.pool.refresh()
        assert await placed(front, request_id="r8", attempt=1, handover=2) == "e2"
        assert await placed(front, request_id="r8", attempt=1, handover=3) == "e1"

    async def test_a_live_request_precedes_a_released_one_of_its_key(self, front, first, second):
        first.hold("r4")
        first.released["r4", 0] = first.requests.popitem()[1]
        second.hold("r4")
        assert await placed(front, request_id="r4", attempt=1) == "e2"

    @pytest.mark.parametrize("attempt", [0, 1])
    async def test_a_repeated_start_joins_the_one_in_progress(self, front, first, second, attempt):
        """Its question must not be there before the start: that one may be on its way, however long its prompt is."""
        arrived, go = asyncio.Event(), asyncio.Event()

        async def held(message, context):
            arrived.set()
            await go.wait()
            return await first.StartRequest(message, context)

        first.script["StartRequest"] = held
        one = asyncio.ensure_future(placed(front, request_id="r1"))
        await happens(arrived, "no start arrives")
        two = asyncio.ensure_future(placed(front, request_id="r1", attempt=attempt))
        while front.gateway.calls.count < 2:  # noqa: ASYNC110 (a call tells nobody that it arrived)
            await asyncio.sleep(0)
        assert await placed(front, request_id="another") == "e2"  # only starts of one key wait for one another
        go.set()
        assert [await one, await two] == ["e1", "e1"]
        assert len(first.requests) == 1
        assert [held.request_id for held in second.requests.values()] == ["another"]

    async def test_one_that_was_cut_lets_the_next_go_on(self, front, first, second):
        async def stuck(message, context):
            await asyncio.Event().wait()

        first.script["StartRequest"] = stuck
        one = front.requests.StartRequest(request("r1"))
        await until(first, lambda: first.asked("StartRequest"))
        two = asyncio.ensure_future(placed(front, request_id="r1", attempt=1))
        first.models.clear()
        await front.gateway.pool.refresh()
        one.cancel()
        assert await two == "e2"


class TestTokenizers:
    """Tokenize and Detokenize go to an engine that has the model, running or not."""

    async def test_the_engine_that_has_it_answers(self, front, first, second):
        first.models, second.models = {"other": RUNNING}, {"smol": INITIAL}
        await front.gateway.pool.refresh()
        answer = await front.facts.Tokenize(facts_wire.TokenizeRequest(model_name="smol", text="Hello"))
        assert answer.rendered_text == "Hello"
        text = await front.facts.Detokenize(facts_wire.DetokenizeRequest(model_name="smol", token_ids=[1, 2, 3]))
        assert text.text == "xxx"
        assert not first.asked("Tokenize")

    @pytest.mark.parametrize("why", ["gone", "without the model"])
    async def test_an_engine_that_cannot_answer_moves_on(self, front, first, second, why):
        if why == "gone":
            await first.stop()
        else:
            first.models.clear()
        for _ in range(2):
            await front.facts.Tokenize(facts_wire.TokenizeRequest(model_name="smol", text="Hello"))
        assert len(second.asked("Tokenize")) == 2

    async def test_a_model_that_no_engine_has_is_unknown(self, front):
        failure = await failing(front.facts.Tokenize(facts_wire.TokenizeRequest(model_name="none", text="Hello")))
        assert failure.reported == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_MODEL")

    async def test_a_wrong_call_is_refused_by_the_engine(self, front, first, second):
        async def invalid(request, context):
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")

        first.script["Tokenize"] = second.script["Tokenize"] = invalid
        failure = await failing(front.facts.Tokenize(facts_wire.TokenizeRequest(model_name="smol")))
        assert failure.reason == "INVALID_FIELD"
        assert len(first.asked("Tokenize") + second.asked("Tokenize")) == 1
