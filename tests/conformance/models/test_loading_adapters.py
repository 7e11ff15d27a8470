"""Adapters are loaded, listed and unloaded while a model serves, and come back with their model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from headrace import Client, ConflictError, InvalidRequestError, NotFoundError, StateError
from support.backends.torch_sequences import random_ids
from support.contract.places import MODEL, Place
from support.models.tiny_adapters import make_tiny_adapter, peft_greedy
from support.models.tiny_models import make_tiny_llama

NAME = "loading"
PROMPT = random_ids(40, seed=6)
COUNT = 8
RANKS = {"a": 4, "b": 7, "c": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    return make_tiny_llama(tmp_path_factory.mktemp("loading"), max_position_embeddings=128)


@pytest.fixture(scope="module")
def paths(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three adapters for it."""
    to = tmp_path_factory.mktemp("loaded")
    return {name: make_tiny_adapter(to / name, folder, r=rank, seed=rank) for name, rank in RANKS.items()}


@pytest.fixture(scope="module")
def expected(folder: Path, paths: dict[str, Path]) -> dict[str, list[int]]:
    """What PEFT computes with each, and with none."""
    return {name: list(peft_greedy(folder, paths.get(name), PROMPT, COUNT)) for name in ("", *paths)}


@pytest.fixture
def model(client: Client, place: Place, folder: Path, paths: dict[str, Path]) -> Iterator[str]:
    """The running model with room for two adapters, of which "a" is loaded."""
    adapters = [{"name": "a", "path": str(paths["a"])}]
    room = {"lora_max_num": 2, "lora_max_rank": 8}
    client.install_model(
        NAME, path=str(folder), adapters=adapters, max_batch=4, max_length=128, **room, **place.settings
    )
    client.start_model(NAME)
    yield NAME
    for request in client.list_requests(NAME):
        client.release_request(request.request.handle)
    client.stop_model(NAME)
    client.release_model(NAME)


def answer(client: Client, name: str) -> list[int]:
    """The ids that a greedy request with an adapter gets."""
    handle, queue = client.start_request(
        NAME, ids=PROMPT, lora_name=name, max_new_tokens=COUNT, do_sample=False, ignore_eos=True
    )
    found = [token for elements in queue for token in elements.ids_from_generate]
    client.release_request(handle)
    return found


def names(client: Client) -> list[str]:
    """The adapters that are loaded."""
    return [adapter.name for adapter in client.list_adapters(NAME)]


@pytest.mark.ranks
def test_a_loaded_adapter_answers_as_peft_does(
    client: Client, model: str, paths: dict[str, Path], expected: dict[str, list[int]]
) -> None:
    """Loaded beside the install's own, while the model runs; and after it was stopped and started again."""
    (loaded,) = client.load_adapter(model, "b", str(paths["b"]))
    assert (loaded.name, loaded.rank, loaded.unloaded, loaded.path) == ("b", 7, "", str(paths["b"]))
    assert {name: answer(client, name) for name in ("", "a", "b")} == {name: expected[name] for name in ("", "a", "b")}
    assert {each.name: each.digest for each in client.list_adapters(model)}["b"] == loaded.digest
    client.stop_model(model)
    client.start_model(model)
    assert names(client) == ["a", "b"]
    assert answer(client, "b") == expected["b"]


def test_the_least_recently_used_makes_room(
    client: Client, model: str, paths: dict[str, Path], expected: dict[str, list[int]]
) -> None:
    """The one that was loaded first was used last; its cached prefix stays right."""
    client.load_adapter(model, "b", str(paths["b"]))
    assert answer(client, "a") == expected["a"]
    (loaded,) = client.load_adapter(model, "c", str(paths["c"]))
    assert (loaded.unloaded, names(client)) == ("b", ["a", "c"])
    with pytest.raises(NotFoundError, match="loaded: a, c") as refusal:
        answer(client, "b")
    assert refusal.value.reason == "UNKNOWN_LORA"
    assert [answer(client, name) for name in ("c", "a", "")] == [expected[name] for name in ("c", "a", "")]


def test_an_unloaded_adapter_is_gone(client: Client, model: str, expected: dict[str, list[int]]) -> None:
    """Also one of the install."""
    assert answer(client, "a") == expected["a"]
    (gone,) = client.unload_adapter(model, "a")
    assert (gone.name, gone.sequences, names(client)) == ("a", 0, [])
    with pytest.raises(NotFoundError, match="loaded: none"):
        answer(client, "a")
    with pytest.raises(NotFoundError) as refusal:
        client.unload_adapter(model, "a")
    assert refusal.value.reason == "UNKNOWN_LORA"
    assert answer(client, "") == expected[""]


def test_the_same_content_again_changes_nothing(client: Client, model: str, paths: dict[str, Path]) -> None:
    before = client.list_adapters(model)
    client.load_adapter(model, "a", str(paths["a"]))
    assert client.list_adapters(model) == before
    with pytest.raises(ConflictError, match=r"unload_adapter") as refusal:
        client.load_adapter(model, "a", str(paths["b"]))
    assert refusal.value.reason == "LORA_EXISTS"
    assert client.list_adapters(model) == before


def test_what_cannot_be_loaded_is_refused(
    client: Client, model: str, folder: Path, tmp_path: Path, paths: dict[str, Path]
) -> None:
    """By name, and nothing makes room for it."""
    client.load_adapter(model, "b", str(paths["b"]))
    large = make_tiny_adapter(tmp_path / "large", folder, r=9, seed=9)
    with pytest.raises(InvalidRequestError, match="has rank 9, more than lora_max_rank 8"):
        client.load_adapter(model, "large", str(large))
    with pytest.raises(StateError, match="no such file or directory") as refusal:
        client.load_adapter(model, "absent", str(tmp_path / "absent"))
    assert refusal.value.reason == "BAD_MODEL"
    with pytest.raises(InvalidRequestError, match="name = 'a b' is not a valid name"):
        client.load_adapter(model, "a b", str(large))
    with pytest.raises(NotFoundError) as unknown:
        client.unload_adapter(model, "large")
    assert unknown.value.reason == "UNKNOWN_LORA"
    with pytest.raises(InvalidRequestError, match="no room for adapters"):
        client.load_adapter(MODEL, "a", str(paths["a"]))
    assert names(client) == ["a", "b"]
