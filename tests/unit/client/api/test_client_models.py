"""Calls about models and servers, on the wire and back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import grpc
import pytest
from headrace import (
    Client,
    InvalidRequestError,
    ModelState,
    NotFoundError,
)
from headrace.types import ConfigWarning
from headrace_proto.v1 import (
    engine_service_pb2,
    generation_pb2,
    model_pb2,
    model_service_pb2,
    stat_pb2,
    status_pb2,
)
from support.scripted.replies import Failure, Hang
from support.scripted.server import ScriptedServer


def model_info(state: int = model_pb2.MODEL_STATE_RUNNING, **fields: Any) -> model_pb2.ModelInfo:
    """A model on an engine."""
    return model_pb2.ModelInfo(model_name="smol", engine="e1", state=state, wanted_state=state, **fields)


def test_install_model_sends_the_config_and_answers_by_engine(client: Client, server: ScriptedServer) -> None:
    failed = model_info(failure=status_pb2.Status(code=9, message="no room."))
    done = model_info(model_pb2.MODEL_STATE_INITIAL)
    done.effective.config.max_batch = 8
    done.effective.kv_tokens = 1024
    done.effective.warnings.add(field="top_p", message="odd.")
    done.state_time.FromSeconds(1_700_000_000)
    server.expect("InstallModel", model_service_pb2.InstallModelResponse(engines=[done, failed]))
    first, second = client.install_model(
        "smol", "models/smol.gguf", max_batch=8, kv_cache_mode="INT8", drain_limit=0, engine_ids=["e1", "e2"]
    )
    request = server.requests("InstallModel")[0]
    assert (request.config.model_name, request.config.model_path) == ("smol", "models/smol.gguf")
    assert request.config.HasField("drain_limit")
    assert (list(request.engine_ids), request.no_wait) == (["e1", "e2"], False)
    assert first.state is ModelState.INITIAL
    assert first.effective.config == {"max_batch": 8}
    assert first.effective.kv_tokens == 1024
    assert first.effective.warnings[0].field == "top_p"
    assert first.state_time == datetime.fromtimestamp(1_700_000_000, tz=UTC)
    assert second.effective is None
    assert "no room" in str(second.failure)


def test_a_wrong_install_keyword_raises_before_anything_is_sent(client: Client) -> None:
    with pytest.raises(TypeError, match=r'install_model\(\) has no keyword "max_batchs"; did you mean max_batch'):
        client.install_model("smol", "x", max_batchs=8)
    with pytest.raises(InvalidRequestError, match="max_batch = -1"):
        client.install_model("smol", "x", max_batch=-1)


@pytest.mark.parametrize("verb", ["Start", "Stop", "Release"])
def test_model_verbs(client: Client, server: ScriptedServer, verb: str) -> None:
    answer = getattr(model_service_pb2, f"{verb}ModelResponse")(engines=[model_info()])
    server.expect(f"{verb}Model", answer)
    infos = getattr(client, f"{verb.lower()}_model")("smol", engine_ids=("e1",), no_wait=True)
    request = server.requests(f"{verb}Model")[0]
    assert (request.model_name, list(request.engine_ids), request.no_wait) == ("smol", ["e1"], True)
    assert [(one.engine, one.state) for one in infos] == [("e1", ModelState.RUNNING)]


def test_get_and_list_models(client: Client, server: ScriptedServer) -> None:
    server.expect("GetModel", model_service_pb2.GetModelResponse(engines=[model_info()]))
    server.expect("ListModels", model_service_pb2.ListModelsResponse(models=[model_info(99), model_info(0)]))
    assert client.get_model("smol")[0].model_name == "smol"
    # A state of tomorrow, and that of an engine that cannot be asked.
    assert [one.state for one in client.list_models()] == [ModelState.UNKNOWN] * 2


def test_watch_model_iterates_until_the_end_and_can_be_left(client: Client, server: ScriptedServer) -> None:
    progress = model_pb2.ModelProgress(phase=model_pb2.MODEL_PHASE_LOADING, bytes_done=5, bytes_total=10)
    changes = [model_service_pb2.WatchModelResponse(model=model_info(progress=progress))] * 2
    server.expect("WatchModel", [*changes], [*changes, Hang()])
    assert [one.progress.phase for one in client.watch_model("smol")] == ["LOADING"] * 2
    with client.watch_model("smol") as watch:
        assert next(watch).progress.bytes_total == 10
    assert list(watch) == []
    server.wait_for_streams(0)


def test_a_dropped_watch_ends_its_call(client: Client, server: ScriptedServer) -> None:
    server.expect("WatchModel", [Hang()])
    watch = client.watch_model()
    server.wait_for_streams(1)
    del watch
    server.wait_for_streams(0)


def test_a_watch_that_fails_raises(client: Client, server: ScriptedServer) -> None:
    server.expect("WatchModel", [Failure(grpc.StatusCode.NOT_FOUND, "no model smol.", reason="UNKNOWN_MODEL")])
    with pytest.raises(NotFoundError, match="no model smol"):
        next(client.watch_model("smol"))


def test_inspect_model(client: Client, server: ScriptedServer) -> None:
    description = model_pb2.ModelDescription(
        config_json='{"hidden_size": 64}', vocab_size=384, refusal=status_pb2.Status(code=3, message="too new.")
    )
    server.expect("InspectModel", model_service_pb2.InspectModelResponse(description=description, engine="e1"))
    found = client.inspect_model("models/x", format="HF", revision="main")
    request = server.requests("InspectModel")[0]
    assert (request.model_path, request.revision) == ("models/x", "main")
    assert (found.engine, found.config, found.vocab_size, found.chat_template) == ("e1", {"hidden_size": 64}, 384, None)
    assert "too new" in str(found.refusal)


def test_tokenize_and_detokenize(client: Client, server: ScriptedServer) -> None:
    warning = generation_pb2.Warning(field="chat.tools", message="tools have no effect")
    server.expect(
        "Tokenize", engine_service_pb2.TokenizeResponse(token_ids=[1, 2], rendered_text="<user>Hi", warnings=[warning])
    )
    server.expect("Detokenize", engine_service_pb2.DetokenizeResponse(text="Hi", pieces=[b"H", b"i"]))
    tokenized = client.tokenize("smol", messages=[{"role": "user", "content": "Hi"}], add_generation_prompt=False)
    assert (tokenized.ids, tokenized.rendered_text) == ([1, 2], "<user>Hi")
    assert tokenized.warnings == (ConfigWarning("chat.tools", "tools have no effect"),)
    assert server.requests("Tokenize")[0].chat.HasField("add_generation_prompt")
    detokenized = client.detokenize("smol", [1, 2], skip_special_tokens=False)
    assert (detokenized.text, detokenized.pieces) == ("Hi", [b"H", b"i"])
    assert server.requests("Detokenize")[0].HasField("skip_special_tokens")


def test_engine_stats_and_server_info(client: Client, server: ScriptedServer) -> None:
    stat = stat_pb2.EngineStat(model_name="smol", engine="e1", running=3, generated_tps=51.5)
    stat.step_time_p50.FromMicroseconds(1500)
    stat.time.FromMilliseconds(1_700_000_000_500)
    server.expect("GetEngineStat", engine_service_pb2.GetEngineStatResponse(stats=[stat]))
    (found,) = client.engine_stats("smol")
    assert (found.running, found.generated_tps, found.step_time_p50, found.step_time_p99) == (3, 51.5, 1.5, None)
    assert found.time == 1_700_000_000_500
    assert found.prefix_cache_hit_rate is None
    engines = [engine_service_pb2.EngineInfo(engine="e1", reachable=True)]
    info = engine_service_pb2.GetServerInfoResponse(
        role=engine_service_pb2.SERVER_ROLE_GATEWAY, name="gw", features=["session"], engines=engines
    )
    server.expect("GetServerInfo", info)
    answer = client.server_info()
    assert (answer.role, answer.features, answer.start_time) == ("GATEWAY", ("session",), None)
    assert answer.engines[0].reachable


def test_watch_engine_stats(client: Client, server: ScriptedServer) -> None:
    one = engine_service_pb2.WatchEngineStatResponse(stats=[stat_pb2.EngineStat(running=2)])
    server.expect("WatchEngineStat", [one, one])
    assert [stats[0].running for stats in client.watch_engine_stats(interval=0.5)] == [2, 2]
    assert server.requests("WatchEngineStat")[0].interval.ToMilliseconds() == 500
