"""LoRA adapters: several and none in one batch, as PEFT computes them, and what a model refuses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from headrace import Client, InvalidRequestError, NotFoundError, StateError
from headrace.types import GeneratedElements
from support.backends.torch_sequences import random_ids
from support.contract.places import MODEL, Place
from support.models.tiny_adapters import make_tiny_adapter, peft_greedy, peft_states
from support.models.tiny_models import make_tiny_llama

NAME = "adapted"
PROMPT = random_ids(70, seed=5)
COUNT = 12
RANKS = {"a": 4, "b": 7}


@dataclass(frozen=True)
class Adapted:
    """A model with adapters "a" and "b", which requests use."""

    client: Client
    folder: Path
    paths: dict[str, Path]

    def start(self, name: str, ids: Sequence[int] = PROMPT, **fields: Any) -> Any:
        """Start a greedy request with an adapter; "": none."""
        fields = {"max_new_tokens": COUNT, "do_sample": False, "ignore_eos": True, **fields}
        handle, queue = self.client.start_request(NAME, ids=ids, lora_name=name, **fields)
        assert queue.request.effective_config.get("lora_name", "") == name
        return handle, queue

    def expected(self, name: str, ids: Sequence[int] = PROMPT) -> list[int]:
        """Return what PEFT computes."""
        return list(oracle(self.folder, self.paths.get(name), tuple(ids)))


@cache
def oracle(folder: Path, adapter: Path | None, ids: tuple[int, ...]) -> list[int]:
    """Return what PEFT computes, once for all paths."""
    return peft_greedy(folder, adapter, ids, COUNT)


def read(queue: Any) -> list[GeneratedElements]:
    """Return all elements of a queue."""
    return list(queue)


def ids_of(elements: Sequence[GeneratedElements]) -> list[int]:
    """Return all ids of a sequence."""
    return [token for each in elements for token in each.ids_from_generate]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    return make_tiny_llama(tmp_path_factory.mktemp("adapted"), max_position_embeddings=128)


@pytest.fixture(scope="session")
def paths(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two adapters for it."""
    to = tmp_path_factory.mktemp("adapters")
    return {name: make_tiny_adapter(to / name, folder, r=rank, seed=rank) for name, rank in RANKS.items()}


@pytest.fixture
def adapted(client: Client, place: Place, folder: Path, paths: dict[str, Path]) -> Iterator[Adapted]:
    """The model with both adapters, and with short chunks of prompts."""
    adapters = [{"name": name, "path": str(path)} for name, path in paths.items()]
    sizes = {"max_batch": 4, "max_length": 128, "max_prefill_tokens": 48, **place.settings}
    client.install_model(NAME, path=str(folder), adapters=adapters, **sizes)
    client.start_model(NAME)
    yield Adapted(client, folder, paths)
    for request in client.list_requests(NAME):
        client.release_request(request.request.handle)
    client.stop_model(NAME)
    client.release_model(NAME)


@pytest.mark.ranks
def test_several_adapters_and_none_share_a_batch(adapted: Adapted) -> None:
    """Each of two sequences of each request is what PEFT computes alone."""
    names = ("a", "", "b", "a")
    queues = [adapted.start(name, ids=PROMPT[number:], n=2)[1] for number, name in enumerate(names)]
    for number, (name, queue) in enumerate(zip(names, queues, strict=True)):
        expected = adapted.expected(name, PROMPT[number:])
        assert [ids_of(read(each)) for each in queue.choices] == [expected, expected]


def test_embeddings_are_computed_with_an_adapter(adapted: Adapted) -> None:
    prompts = [PROMPT[:length] for length in (1, 17, 70)]
    vectors = {}
    for name in ("a", "", "b"):
        found = adapted.client.embed(NAME, prompts, normalize=False, lora_name=name)
        vectors[name] = np.array([one.values for one in found])
        states = [peft_states(adapted.folder, adapted.paths.get(name), ids)[-1] for ids in prompts]
        assert np.abs(vectors[name] - np.array(states)).max() < 1e-4 * np.abs(states).max()
    assert np.abs(vectors["a"] - vectors[""]).max() > 0.01 * np.abs(vectors[""]).max()
    with pytest.raises(NotFoundError, match=r"loaded: a, b") as refusal:
        adapted.client.embed(NAME, prompts, lora_name="nope")
    assert refusal.value.reason == "UNKNOWN_LORA"


def test_bc072_adapters_share_no_prefix(adapted: Adapted) -> None:
    """The same prompt with none, each adapter, and again: only the same content finds what was cached."""
    for name, again in (("", False), ("a", False), ("b", False), ("", True), ("a", True), ("b", True)):
        elements = read(adapted.start(name)[1])
        assert ids_of(elements) == adapted.expected(name)
        assert (elements[0].prefix_cache_len > 0) == again


def test_preempted_sequences_keep_their_adapters(client: Client, adapted: Adapted, place: Place, folder: Path) -> None:
    """A pool of one and a half sequences: they take turns, and are computed again."""
    client.stop_model(NAME)
    client.release_model(NAME)
    adapters = [{"name": name, "path": str(path)} for name, path in adapted.paths.items()]
    sizes = {"max_batch": 4, "max_length": 96, "num_blocks": 8, "enable_prefix_cache": False, **place.settings}
    client.install_model(NAME, path=str(folder), adapters=adapters, **sizes)
    client.start_model(NAME)
    names, prompt = ("a", "b", ""), PROMPT[:40]
    queues = [adapted.start(name, ids=prompt)[1] for name in names]
    assert [ids_of(read(queue)) for queue in queues] == [adapted.expected(name, prompt) for name in names]


def test_the_answer_names_the_content(adapted: Adapted) -> None:
    """It is the digest of the adapter that was applied, and there is none without."""
    digests = {
        name: adapted.client.get_request(adapted.start(name)[0]).request.adapter_digest for name in ("a", "b", "")
    }
    assert digests[""] == ""
    assert len({*digests.values()}) == 3
    assert {len(digests["a"]), len(digests["b"])} == {64}


@pytest.mark.parametrize("name", ["nope", "A", "a "])
def test_bc136_an_unknown_name_is_refused(adapted: Adapted, name: str) -> None:
    with pytest.raises(NotFoundError, match=r"loaded: a, b") as refusal:
        adapted.start(name)
    assert refusal.value.reason == "UNKNOWN_LORA"


def test_a_model_without_adapters_refuses_every_name(client: Client) -> None:
    with pytest.raises(NotFoundError, match="loaded: none") as refusal:
        client.start_request(MODEL, ids=[1, 2], lora_name="a")
    assert refusal.value.reason == "UNKNOWN_LORA"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"lora_max_rank": 3}, "has rank 4, more than lora_max_rank 3"),
        ({"lora_max_num": 1}, "lora_max_num = 1, but adapters has 2 entries"),
        ({"adapters": [], "lora_max_rank": 3}, "no room for an adapter"),
        ({"adapters": [{"name": "a b", "path": "x"}]}, "adapters[0].name = 'a b' is not a valid name"),
        ({"adapters": [{"name": "a"}]}, "adapters[0].path is not set"),
        ({"adapters": [{"name": "a", "path": "x"}, {"name": "a", "path": "y"}]}, "'a' twice"),
    ],
)
def test_bc137_an_install_refuses(
    client: Client, place: Place, folder: Path, paths: dict[str, Path], fields: dict[str, Any], words: str
) -> None:
    given: dict[str, Any] = {"adapters": [{"name": name, "path": str(path)} for name, path in paths.items()]}
    with pytest.raises(InvalidRequestError) as refusal:
        client.install_model("refused", path=str(folder), **{**given, **fields}, **place.settings)
    assert words in str(refusal.value)
    if any(model.model_name == "refused" for model in client.list_models()):
        client.release_model("refused")


def test_an_adapter_that_is_not_there_fails_the_install(
    client: Client, place: Place, folder: Path, tmp_path: Path
) -> None:
    adapters = [{"name": "absent", "path": str(tmp_path / "absent")}]
    with pytest.raises(StateError, match=r'adapter "absent": .*no such file or directory') as refusal:
        client.install_model("refused", path=str(folder), adapters=adapters, **place.settings)
    assert refusal.value.reason == "BAD_MODEL"
    client.release_model("refused")
