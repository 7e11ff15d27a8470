"""Section 1: models, their states, and the verbs that move them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from headrace import (
    Client,
    ConflictError,
    NotFoundError,
    RequestReleasedError,
    RetryPolicy,
    StateError,
)
from headrace.model_types import ModelInfo
from headrace.types import FinishReason, GenerateStatus, ModelState
from support.clocks.waiting import LIMIT, wait_until
from support.contract.places import LONG_LENGTH, MODEL, Folders, Place
from support.contract.second_model import NAME, forget


def _state(client: Client, name: str = NAME) -> ModelState:
    return client.get_model(name)[0].state


def test_a_model_walks_from_installed_to_released(client: Client, place: Place) -> None:
    installed = client.install_model(NAME, path=str(place.folder), max_length=128, **place.settings)
    assert installed[0].state is ModelState.INITIAL
    assert client.start_model(NAME)[0].state is ModelState.RUNNING
    assert client.stop_model(NAME)[0].state is ModelState.STOPPED
    assert client.start_model(NAME)[0].state is ModelState.RUNNING
    assert client.stop_model(NAME)[0].state is ModelState.STOPPED
    assert client.release_model(NAME)[0].state is ModelState.RELEASED
    with pytest.raises(NotFoundError, match=NAME) as refusal:
        client.get_model(NAME)
    assert refusal.value.reason == "UNKNOWN_MODEL"


def test_watch_model_shows_states_in_order_until_the_release(client: Client, second: str) -> None:
    seen: list[ModelInfo] = []
    first = threading.Event()

    def watch() -> None:
        for model in client.watch_model(second):
            seen.append(model)
            first.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert first.wait(LIMIT)
    client.start_model(second)
    client.stop_model(second)
    client.release_model(second)
    watcher.join(LIMIT)
    assert not watcher.is_alive()
    states = [model.state for model in seen]
    order = list(dict.fromkeys(states))
    assert order == ["INITIAL", "STARTING", "RUNNING", "STOPPING", "STOPPED", "RELEASED"]
    phases = {model.progress.phase for model in seen if model.progress}
    assert phases <= {"READING", "LOADING", "ALLOCATING", "WARMING_UP", "DRAINING", "FREEING"}
    assert all(model.effective is None for model in seen)


def test_installing_again_with_an_equal_config_changes_nothing(client: Client, second: str, place: Place) -> None:
    client.start_model(second)
    again = client.install_model(second, path=str(place.folder), max_length=128, max_batch=2, **place.settings)
    assert again[0].state is ModelState.RUNNING


def test_installing_again_with_another_config_is_refused(client: Client, second: str, place: Place) -> None:
    with pytest.raises(ConflictError, match=second) as refusal:
        client.install_model(second, path=str(place.folder), max_length=64, max_batch=2, **place.settings)
    assert refusal.value.reason == "MODEL_EXISTS"


def test_a_failed_install_keeps_the_name_and_takes_any_config(client: Client, folders: Folders, tmp_path: Path) -> None:
    with pytest.raises(StateError, match=f"{tmp_path.name}: no model") as refusal:
        client.install_model(NAME, path=str(tmp_path))
    assert refusal.value.reason == "BAD_MODEL"
    failed = client.get_model(NAME)[0]
    assert failed.state is ModelState.FAILED
    assert failed.failure is not None
    assert failed.failure.reason == "BAD_MODEL"
    assert client.install_model(NAME, path=str(folders.tiny))[0].state is ModelState.INITIAL
    client.release_model(NAME)


def test_a_failed_start_says_what_to_lower(client: Client, folders: Folders) -> None:
    client.install_model(NAME, path=str(folders.tiny), max_length=256, num_blocks=4)
    with pytest.raises(StateError) as refusal:
        client.start_model(NAME)
    assert refusal.value.reason == "OUT_OF_MEMORY"
    assert "num_blocks" in str(refusal.value)
    assert _state(client) is ModelState.FAILED
    released = client.release_model(NAME)[0]
    assert (released.state, released.failure) == (ModelState.RELEASED, None)


def test_no_wait_returns_at_once_and_a_repeated_call_joins(client: Client, second: str) -> None:
    begun = client.start_model(second, no_wait=True)[0]
    assert begun.state in (ModelState.INITIAL, ModelState.STARTING)
    assert begun.wanted_state is ModelState.RUNNING
    assert client.start_model(second)[0].state is ModelState.RUNNING


def test_start_waits_for_an_install_in_progress(client: Client, place: Place) -> None:
    client.install_model(NAME, path=str(place.folder), max_length=128, no_wait=True, **place.settings)
    assert client.start_model(NAME)[0].state is ModelState.RUNNING
    forget(client, NAME)


def test_a_verb_that_is_cut_goes_on(place: Place, client: Client, second: str) -> None:
    limit = 0.001
    while _state(client) is ModelState.INITIAL:  # One that is cut on its way there has begun nothing.
        with pytest.raises(TimeoutError):
            client.start_model(second, timeout=limit)
        limit *= 2
    wait_until(lambda: _state(client) is ModelState.RUNNING, "the start was given up")


def test_stop_ends_a_start_in_progress(client: Client, second: str) -> None:
    client.start_model(second, no_wait=True)
    wait_until(lambda: _state(client) is not ModelState.INITIAL, "the start did not begin")
    assert client.stop_model(second)[0].state is ModelState.STOPPED


def test_verbs_in_their_target_state_succeed(client: Client, second: str, folders: Folders) -> None:
    client.start_model(second)
    assert client.start_model(second)[0].state is ModelState.RUNNING
    client.stop_model(second)
    assert client.stop_model(second)[0].state is ModelState.STOPPED


@pytest.mark.parametrize(("verb", "state"), [("stop_model", "INITIAL"), ("release_model", "RUNNING")])
def test_an_impossible_verb_names_the_state(client: Client, second: str, verb: str, state: str) -> None:
    if state == "RUNNING":
        client.start_model(second)
    with pytest.raises(StateError, match=state) as refusal:
        getattr(client, verb)(second)
    assert refusal.value.reason == "WRONG_STATE"
    assert refusal.value.details["state"] == state


@pytest.mark.parametrize("verb", ["start_model", "stop_model", "release_model", "get_model"])
def test_an_unknown_name_is_not_found(client: Client, verb: str) -> None:
    with pytest.raises(NotFoundError, match="nobody") as refusal:
        getattr(client, verb)("nobody")
    assert refusal.value.reason == "UNKNOWN_MODEL"


def test_model_verbs_address_engines_by_name(client: Client, second: str) -> None:
    assert client.start_model(second, engine_ids=["e1"])[0].engine == "e1"
    with pytest.raises(NotFoundError) as refusal:
        client.stop_model(second, engine_ids=["elsewhere"])
    assert refusal.value.reason == "UNKNOWN_ENGINE"


def test_a_model_that_does_not_run_takes_no_requests(client: Client, second: str) -> None:
    with pytest.raises(StateError, match="start it first") as refusal:
        client.start_request(second, ids=[1, 2])
    assert refusal.value.reason == "MODEL_NOT_RUNNING"
    assert refusal.value.details["state"] == "INITIAL"


def test_b4_a_model_on_its_way_to_running_is_waited_for(place: Place, client: Client) -> None:
    client.install_model(NAME, path=str(place.folder), max_length=64, no_wait=True, **place.settings)
    client.start_model(NAME, no_wait=True)
    with place.connect(retry=RetryPolicy(give_up_after=200)) as patient:
        handle, queue = patient.start_request(NAME, ids=[1, 2], max_new_tokens=1, ignore_eos=True)
        element = queue.Get()
        assert element is not None
        assert len(element.ids_from_generate) == 1
        patient.release_request(handle)
    assert client.get_model(NAME)[0].state is ModelState.RUNNING
    forget(client, NAME)


def test_stop_lets_running_requests_end_until_the_drain_limit(client: Client, place: Place) -> None:
    client.install_model(NAME, path=str(place.long), max_length=LONG_LENGTH, drain_limit=0.0, **place.settings)
    client.start_model(NAME)
    handle, queue = client.start_request(NAME, ids=[1, 2], ignore_eos=True)
    queue.Get()
    assert client.stop_model(NAME)[0].state is ModelState.STOPPED
    for _ in queue:
        pass
    assert queue.GenerateStatus() is GenerateStatus.GenerateInterrupted
    assert queue.finish_reason is FinishReason.DRAINED
    client.release_model(NAME)
    client.release_request(handle)
    with pytest.raises(RequestReleasedError):
        queue.Get()


def test_stop_within_the_drain_limit_ends_nothing_early(client: Client, second: str) -> None:
    client.start_model(second)
    _, queue = client.start_request(second, ids=[1, 2], ignore_eos=True, max_new_tokens=60)
    client.stop_model(second)
    assert sum(len(elements.ids_from_generate) for elements in queue) == 60
    assert queue.finish_reason is FinishReason.MAX_LENGTH


def test_list_models_names_model_and_engine(client: Client) -> None:
    models = client.list_models()
    assert [model.model_name for model in models] == sorted(model.model_name for model in models)
    assert {model.engine for model in models} == {"e1"}
    assert all(model.state_time is not None for model in models)


def test_get_model_tells_every_choice_and_size(client: Client) -> None:
    effective = client.get_model(MODEL)[0].effective
    assert effective is not None
    config = effective.config
    assert config["dtype"] == "FLOAT32"
    assert config["num_threads"] >= 1
    assert (config["max_length"], config["max_batch"], config["block_size"]) == (256, 8, 16)
    assert config["enable_prefix_cache"] is True
    assert config["num_blocks"] * 16 == effective.kv_tokens == 256 * 8
    assert effective.kv_bytes == effective.kv_tokens * 2 * 2 * 64 * 4 // 2  # 2 of 4 heads have keys and values.
    assert effective.weight_bytes > 0
    assert effective.workspace_bytes > 0
    assert effective.vocab_size == 384
    assert effective.devices


def test_inspect_model_describes_without_installing(client: Client, folders: Folders) -> None:
    found = client.inspect_model(str(folders.tiny))
    assert (found.format, found.architecture) == ("HF", "LlamaForCausalLM")
    assert (found.max_length, found.vocab_size) == (256, 384)
    assert found.config["num_hidden_layers"] == 2
    assert found.refusal is None
    assert found.chat_template
    assert str(folders.tiny) not in {model.model_name for model in client.list_models()}
