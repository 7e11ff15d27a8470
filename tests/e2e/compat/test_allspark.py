"""DashInfer's API with a real model, in this process and through a gateway."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from headrace import Client, InvalidRequestError, ResultQueue, StateError
from headrace.allspark import AsModelConfig, AsStatus, Engine, GenerateRequestStatus, HuggingFaceModel, TargetDevice
from support.servers.processes import Server

OK = AsStatus.ALLSPARK_SUCCESS
PROMPT = "Once upon a time"


@pytest.fixture
def engine(address: str | None, caplog: pytest.LogCaptureFixture) -> Iterator[Engine]:
    with caplog.at_level(logging.INFO, "headrace.allspark"), Engine(address) as engine:
        assert "AllSpark Init with Version: headrace-" in caplog.text
        yield engine


@pytest.fixture
def model(engine: Engine, tiny: Path) -> HuggingFaceModel:
    loader = HuggingFaceModel(str(tiny), "owner/tiny", user_set_data_type="float32")
    return loader.load_model().read_model_config().serialize_to_memory(engine).free_model()


@pytest.fixture
def running(engine: Engine, model: HuggingFaceModel) -> Iterator[AsModelConfig]:
    builder = model.create_reference_runtime_config_builder("tiny", TargetDevice.CPU, [0], max_batch=4)
    config = builder.max_length(512).build()
    assert engine.install_model(config) == OK
    assert engine.start_model("tiny") == OK
    yield config
    assert engine.stop_model("tiny") == OK
    assert engine.release_model("tiny") == OK


def read(queue: ResultQueue) -> list[int]:
    """The ids of a queue, read as DashInfer's quick start does."""
    ids: list[int] = []
    while True:
        elements = queue.Get()
        if elements:
            ids += elements.ids_from_generate
        if queue.GenerateStatus() in [
            GenerateRequestStatus.GenerateFinished,
            GenerateRequestStatus.GenerateInterrupted,
        ]:
            return ids


def test_text_ids_and_rows_are_one_prompt(engine: Engine, model: HuggingFaceModel, running: AsModelConfig) -> None:
    """The same tokens as the client generates itself."""
    settings = model.create_reference_generation_config_builder(running).update({"top_k": 1})
    assert settings.build()["max_length"] == 512
    settings.max_length(40)
    tokenizer = model.init_tokenizer().get_tokenizer()
    ids = tokenizer.encode(PROMPT)
    expected = engine.client.start_request("tiny", text=PROMPT, top_k=1, max_length=40)[1]
    wanted = read(expected)
    assert wanted
    started = [
        engine.start_request_text("tiny", model, PROMPT, settings),
        engine.start_request_text("tiny", model, [PROMPT], settings.build()),
        engine.start_request_ids("tiny", model, ids, settings),
        engine.start_request_ids("tiny", model, torch.tensor([ids]), settings),
        engine.start_request_ids("tiny", model, np.array(ids), settings),
    ]
    for status, handle, queue in started:
        assert status == OK
        assert queue is not None
        assert engine.sync_request("tiny", handle) == OK
        assert read(queue) == wanted
        assert engine.release_request("tiny", handle) == OK
    assert tokenizer.decode(ids) == PROMPT


def test_a_chat_is_rendered_by_the_engine(model: HuggingFaceModel, running: AsModelConfig) -> None:
    tokenizer, messages = model.init_tokenizer().get_tokenizer(), [{"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert "Hi" in text
    assert tokenizer.apply_chat_template(messages, add_generation_prompt=True) == tokenizer.encode(text, False)


def test_failures_are_statuses_with_their_error(
    engine: Engine, model: HuggingFaceModel, running: AsModelConfig, caplog: pytest.LogCaptureFixture
) -> None:
    settings = model.create_reference_generation_config_builder(running)
    cases: list[tuple[Any, AsStatus, str]] = [
        (engine.start_model("nobody"), AsStatus.ALLSPARK_PARAM_ERROR, "UNKNOWN_MODEL"),
        (engine.release_model("tiny"), AsStatus.ALLSPARK_INVALID_CALL_ERROR, "WRONG_STATE"),
        (engine.start_request_text("nobody", model, "a", settings)[0], AsStatus.ALLSPARK_PARAM_ERROR, "UNKNOWN_MODEL"),
        (
            engine.start_request_ids("tiny", model, [1] * 600, settings)[0],
            AsStatus.ALLSPARK_EXCEED_LIMIT_ERROR,
            "PROMPT",
        ),
    ]
    for status, code, reason in cases:
        assert status == code
        assert status.error is not None
        assert reason in status.error.reason
        assert status.error.message in caplog.text
    assert engine.sync_request("tiny", "") == AsStatus.ALLSPARK_EMPTY_REQUEST
    with pytest.raises(InvalidRequestError, match="one text: call start_request_text once for each"):
        engine.start_request_text("tiny", model, ["a", "b"], settings)


def test_a_stopped_request_keeps_its_queue_until_it_is_released(
    engine: Engine, model: HuggingFaceModel, running: AsModelConfig
) -> None:
    settings = model.create_reference_generation_config_builder(running).early_stopping(False)
    status, handle, queue = engine.start_request_text("tiny", model, PROMPT, settings)
    assert status == OK
    assert queue is not None
    assert engine.stop_request("tiny", handle) == OK
    assert engine.sync_request("tiny", None) == OK
    assert len(read(queue)) == queue.GeneratedLength()
    assert engine.release_request("tiny", handle) == OK


def test_an_install_that_fails_raises(engine: Engine, tmp_path: Path) -> None:
    """As there; and a loader that knows its engine asks it at once."""
    loader = HuggingFaceModel(str(tmp_path), "nothing", engine=engine)
    with pytest.raises(StateError, match="directory is empty"):
        loader.load_model()
    with pytest.raises(TypeError, match="no path: set it with model_dir"):
        engine.install_model({"name": "nothing"})
    with pytest.raises(StateError, match="directory is empty"):
        engine.install_model({"name": "nothing", "path": str(tmp_path)})
    assert engine.release_model("nothing") == OK


def test_an_engine_in_this_process_ends_with_its_models(tiny: Path) -> None:
    with Engine() as engine:
        engine.install_model({"name": "tiny", "path": str(tiny), "max_length": 64})
    with Engine() as engine:
        assert engine.client.list_models() == []


def test_a_server_keeps_its_models(gateway: Server, tiny: Path) -> None:
    with Engine(gateway.address) as engine:
        engine.install_model({"name": "kept", "path": str(tiny), "max_length": 64})
    with Client(gateway.address) as client:
        assert [model.model_name for model in client.list_models()] == ["kept"]
        client.release_model("kept")
