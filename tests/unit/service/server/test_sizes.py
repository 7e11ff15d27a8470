"""Large messages: refused by their size alone, or turned where they hold up no other call."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from headrace_engine.engine.work.pools import WorkPools
from headrace_engine.errors import FieldViolation, InvalidArgument
from headrace_engine.service import request_servicer
from headrace_engine.service.convert import sizes
from headrace_engine.service.convert.prompt import generate_request, start_request, tokenize_prompt
from headrace_engine.service.convert.sizes import (
    INLINE_BYTES,
    MAX_CHAT_PARTS,
    MAX_CONFIG_BYTES,
    MAX_IDS,
    MAX_SEQUENCES,
    by_size,
)
from headrace_engine.service.engine_servicer import EngineServicer
from headrace_engine.service.model_servicer import ModelServicer
from headrace_engine.service.request_servicer import RequestServicer
from headrace_proto.v1.engine_service_pb2 import DetokenizeRequest, TokenizeRequest
from headrace_proto.v1.model_service_pb2 import InstallModelRequest
from headrace_proto.v1.request_service_pb2 import (
    GenerateRequest,
    GetRequestRequest,
    ListRequestsRequest,
    StartRequestRequest,
)
from support.clocks.clock import settle
from support.clocks.waiting import LIMIT
from support.engine.rig import Rig
from support.models.tiny_models import make_tiny_llama
from support.scripted.engine import ScriptedEngine

USER = {"role": "user", "content": ""}
ALL = [(start_request, StartRequestRequest), (generate_request, GenerateRequest), (tokenize_prompt, TokenizeRequest)]
WITH_CONFIG = ALL[:2]


def violation(turn, message) -> FieldViolation:
    with pytest.raises(InvalidArgument) as caught:
        turn(message)
    assert caught.value.reason == "INVALID_FIELD"
    return caught.value.violations[0]


@pytest.fixture
def unwalked(monkeypatch) -> None:
    """Messages are refused before anything walks through them."""

    def walk(message):
        raise AssertionError("it was walked through")

    monkeypatch.setattr("headrace_engine.service.convert.prompt.refuse_unknown", walk)
    monkeypatch.setattr("headrace_engine.service.model_servicer.refuse_unknown", walk)


@pytest.mark.usefixtures("unwalked")
class TestRefused:
    @pytest.mark.parametrize(("turn", "kind"), ALL)
    def test_too_many_messages(self, turn, kind):
        found = violation(turn, kind(chat={"messages": [USER] * (MAX_CHAT_PARTS + 1)}))
        assert found == FieldViolation("chat.messages", "has 16385 messages; allowed: at most 16384")

    @pytest.mark.parametrize(
        "chat",
        [
            {"messages": [{"role": "user", "parts": [{"text": ""}] * MAX_CHAT_PARTS}]},
            {"messages": [{"role": "assistant", "tool_calls": [{}] * MAX_CHAT_PARTS}]},
            {"messages": [USER], "tools": ["{}"] * MAX_CHAT_PARTS},
            {"messages": [USER], "template_variables": {str(number): "1" for number in range(MAX_CHAT_PARTS)}},
        ],
    )
    @pytest.mark.parametrize(("turn", "kind"), ALL)
    def test_too_many_parts_of_a_chat_together(self, turn, kind, chat):
        found = violation(turn, kind(chat=chat))
        assert found.field == "chat"
        assert found.description.startswith("has 16385 messages, parts")

    @pytest.mark.parametrize(("turn", "kind"), WITH_CONFIG)
    @pytest.mark.parametrize(
        ("name", "entry"),
        [
            ("stop_words_ids", {}),
            ("bad_words_ids", {}),
            ("stop_words", ""),
            ("bad_words", ""),
            ("stop_token_ids", 1),
            ("eos_token_id", 1),
        ],
    )
    def test_too_many_entries_of_a_list(self, turn, kind, name, entry):
        found = violation(turn, kind(text="x", config={name: [entry] * 4097}))
        assert found == FieldViolation(f"config.{name}", "has 4097 entries; allowed: at most 4096")

    @pytest.mark.parametrize(("turn", "kind"), WITH_CONFIG)
    def test_too_many_media(self, turn, kind):
        found = violation(turn, kind(text="x", config={"mm_info": {"items": [{}] * 4097}}))
        assert found.field == "config.mm_info"

    @pytest.mark.parametrize(("turn", "kind"), WITH_CONFIG)
    @pytest.mark.parametrize(
        "config",
        [
            {"stop_words_ids": [{"ids": [1] * 1000}] * 1050},
            {"cache_salt": "x" * MAX_CONFIG_BYTES},
            {"allowed_token_ids": [1] * MAX_CONFIG_BYTES},
        ],
    )
    def test_a_config_that_is_too_large_as_a_whole(self, turn, kind, config):
        found = violation(turn, kind(text="x", config=config))
        assert found.field == "config"
        assert f"allowed: at most {MAX_CONFIG_BYTES}" in found.description

    def test_too_many_sequences_of_a_hand_over(self):
        found = violation(
            start_request, StartRequestRequest(text="x", resume={"sequences": [{}] * (MAX_SEQUENCES + 1)})
        )
        assert found == FieldViolation("resume.sequences", "has 65 entries; allowed: at most 64")

    async def test_too_many_ids_to_detokenize(self):
        with pytest.raises(InvalidArgument, match=f"has {MAX_IDS + 1} ids; allowed: at most {MAX_IDS}"):
            await EngineServicer(ScriptedEngine()).Detokenize(DetokenizeRequest(token_ids=[1] * (MAX_IDS + 1)), None)

    @pytest.mark.parametrize(
        "config", [{"adapters": [{}] * 4097}, {"device_list": [0] * 4097}, {"chat_template": "x" * MAX_CONFIG_BYTES}]
    )
    async def test_a_runtime_config(self, config):
        with pytest.raises(InvalidArgument, match="allowed: at most"):
            await ModelServicer(ScriptedEngine()).InstallModel(InstallModelRequest(config=config), None)


@pytest.mark.parametrize(("turn", "kind"), WITH_CONFIG)
def test_media_do_not_count_as_config(turn, kind):
    media = {"items": [{"data": b"x" * MAX_CONFIG_BYTES, "mime_type": "image/png"}]}
    assert turn(kind(text="x", config={"mm_info": media})).config.mm_info


def test_of_many_unknown_values_only_some_are_looked_for():
    request = StartRequestRequest(text="x", chat={"messages": [USER] * 1000})
    for message in request.chat.messages:
        message.MergeFromString(b"\xa0\x06\x01")
    with pytest.raises(InvalidArgument) as caught:
        start_request(request)
    assert len(caught.value.violations) == 100


def test_many_ids_are_not_copied_before_they_are_counted():
    request = start_request(StartRequestRequest(token_ids={"ids": [7] * (INLINE_BYTES + 1)}))
    assert not isinstance(request.prompt, tuple)
    assert (len(request.prompt), request.prompt[-1]) == (INLINE_BYTES + 1, 7)


def test_what_is_kept_of_a_start_is_small_however_long_it_is():
    short, long = (start_request(StartRequestRequest(text="x" * length)).content for length in (1, 1_000_000))
    assert len(short) == len(long) == 32
    assert short != long


@pytest.mark.parametrize(
    ("message", "elsewhere"),
    [
        (StartRequestRequest(text="x" * (INLINE_BYTES - 10)), False),
        (StartRequestRequest(text="x" * INLINE_BYTES), True),
        (StartRequestRequest(token_ids={"ids": [1] * (INLINE_BYTES + 1)}), True),
        (StartRequestRequest(chat={"messages": [{}] * INLINE_BYTES}), True),
        (StartRequestRequest(text="x", config={"stop_words_ids": [{}] * INLINE_BYTES}), True),
        (StartRequestRequest(text="x", resume={"sequences": [{"delivered_ids": [1] * INLINE_BYTES}]}), True),
        (GenerateRequest(text="x" * INLINE_BYTES), True),
        (TokenizeRequest(chat={"messages": [{"role": "x" * INLINE_BYTES}]}), True),
    ],
)
async def test_long_messages_are_turned_off_the_event_loop(message, elsewhere):
    thread = await by_size(WorkPools(), lambda message: threading.current_thread(), message)
    assert (thread is not threading.main_thread()) == elsewhere


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


async def test_other_calls_are_answered_while_a_long_start_arrives(model_path, monkeypatch):
    rig, go = Rig(model_path), threading.Event()
    await rig.run()

    def held(message):
        assert go.wait(LIMIT)
        return start_request(message)

    monkeypatch.setattr(request_servicer, "start_request", held)
    servicer = RequestServicer(rig.engine)
    message = StartRequestRequest(model_name="smol", request_id="r1")
    message.token_ids.ids.extend([5] * 10)
    monkeypatch.setattr(sizes, "INLINE_BYTES", 4)
    start = asyncio.create_task(servicer.StartRequest(message, None))
    await settle()
    asking = asyncio.create_task(servicer.GetRequest(GetRequestRequest(request_id="r1"), None))
    assert not (await servicer.ListRequests(ListRequestsRequest(), None)).requests
    await settle()
    assert not start.done()
    assert not asking.done()
    go.set()
    assert (await asking).request.request.handle == (await start).request.handle
    await rig.engine.close()
