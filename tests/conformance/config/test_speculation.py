"""`speculation`: results are those without it, and what was drafted is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from headrace import Client, InvalidRequestError, StateError
from headrace.types import FinishReason
from support.contract.places import MODEL, SIM, Folders, Place
from support.contract.ranked_place import skip_where_ranks_refuse
from support.models.tiny_models import make_tiny_llama

NAME = "drafting"
REPEATING = [5, 6, 7, 8, 9, 10] * 6
PERSON = {
    "type": "object",
    "properties": {"the_full_name": {"type": "string", "maxLength": 6}, "the_age_in_years": {"type": "integer"}},
    "required": ["the_full_name", "the_age_in_years"],
    "additionalProperties": False,
}
ASKED: list[dict[str, Any]] = [
    {"do_sample": False},
    {"seed": 3, "temperature": 0.05, "logprobs": True, "top_logprobs": 2},
    {"seed": 4, "n": 3, "temperature": 0.3},
    {"do_sample": False, "repetition_penalty": 1.2, "frequency_penalty": 0.4, "no_repeat_ngram_size": 3},
    {"seed": 5, "top_p": 0.5, "stop_words": ["a", "e"], "min_new_tokens": 6},
    {"do_sample": False, "response_format": {"type": "json_schema", "json_schema": PERSON}, "eos_token_id": [2]},
    {"seed": 6, "response_format": {"type": "json_schema", "json_schema": PERSON}, "eos_token_id": [2]},
    {"seed": 7, "temperature": 0.05, "use_speculation": False},
]

Answer = list[tuple[list[int], str, FinishReason | None, list[float]]]
"""Ids, text, reason of the end, and log-probabilities of each sequence of a request."""


@pytest.fixture
def drafting(client: Client, place: Place) -> Iterator[str]:
    """The model of the path, with speculation."""
    yield from installed(client, place, speculation="NGRAM", max_drafts=6)


@pytest.fixture
def drafts(client: Client, place: Place) -> None:
    """Skips a test where the engine refuses draft models."""
    skip_where_ranks_refuse(client, place, speculation="DRAFT", draft_model=str(place.folder))


@pytest.fixture(params=["itself", "another"])
def with_draft_model(
    client: Client, place: Place, folders: Folders, request: pytest.FixtureRequest, drafts: None
) -> Iterator[str]:
    """The model of the path, with itself as draft model, and with another one of the same vocabulary."""
    folder = folders.tiny if request.param == "itself" else folders.broken
    yield from installed(client, place, speculation="DRAFT", draft_model=str(folder))


def installed(client: Client, place: Place, **config: Any) -> Iterator[str]:
    client.install_model(NAME, path=str(place.folder), max_length=256, max_batch=8, **place.settings, **config)
    client.start_model(NAME)
    yield NAME
    client.stop_model(NAME)
    client.release_model(NAME)


def answers(client: Client, model: str) -> tuple[list[Answer], list[tuple[int, int]]]:
    """What a model answers to all requests at once; and what was drafted and held for each."""
    config = {"ids": REPEATING, "max_new_tokens": 60}
    started = [client.start_request(model, **{**config, **asked}) for asked in ASKED]
    found: list[Answer] = []
    drafts = []
    for handle, queue in started:
        answer: Answer = []
        counts = [0, 0]
        for choice in queue.choices:
            parts = list(choice)
            ids = [token_id for part in parts for token_id in part.ids_from_generate]
            logprobs = [value for part in parts for value in part.token_logprobs_list or ()]
            answer.append((ids, "".join(part.text for part in parts), choice.finish_reason, logprobs))
            stat = choice.RequestStatInfo()
            counts = [counts[0] + stat["drafted_tokens"], counts[1] + stat["accepted_tokens"]]
        found.append(answer)
        drafts.append((counts[0], counts[1]))
        client.release_request(handle)
    return found, drafts


def assert_results_are_those_without(client: Client, model: str) -> None:
    plain, undrafted = answers(client, MODEL)
    [first] = client.engine_stats(model)  # Counters of a name go on where it is installed again.
    with_drafts, drafts = answers(client, model)
    for before, after in zip(plain, with_drafts, strict=True):
        assert [one[:3] for one in before] == [one[:3] for one in after]
        for (*_, expected), (*_, given) in zip(before, after, strict=True):
            assert given == pytest.approx(expected, abs=1e-3)
    assert set(undrafted) == {(0, 0)}
    assert drafts[-1] == (0, 0)
    [stat] = client.engine_stats(model)
    drafted, accepted = map(sum, zip(*drafts, strict=True))
    assert stat.drafted_tokens - first.drafted_tokens == drafted
    assert drafted >= stat.accepted_tokens - first.accepted_tokens == accepted


def test_results_are_those_without(client: Client, drafting: str) -> None:
    assert_results_are_those_without(client, drafting)


def test_results_are_those_without_a_draft_model(client: Client, with_draft_model: str) -> None:
    """The other one's logits are never finite, so it drafts nothing."""
    assert_results_are_those_without(client, with_draft_model)


@pytest.mark.usefixtures("drafts")
def test_memory_counts_the_draft_model(client: Client, place: Place, folders: Folders, tmp_path: Path) -> None:
    small = make_tiny_llama(tmp_path / "small", num_hidden_layers=1)
    effective = []
    for config in ({}, {"speculation": "DRAFT", "draft_model": str(small)}):
        fields: dict[str, Any] = {"path": str(folders.tiny), "max_length": 64, "num_blocks": 100, **config}
        installed = client.install_model(NAME, **fields, **place.settings)[0].effective
        client.start_model(NAME)
        effective.append((installed, client.get_model(NAME)[0].effective))
        client.stop_model(NAME)
        client.release_model(NAME)
    (plain, plain_running), (drafting, running) = effective
    assert drafting.config["draft_model"] == running.config["draft_model"] == str(small)
    for before, after in ((plain, drafting), (plain_running, running)):
        assert after.weight_bytes > before.weight_bytes
    assert running.kv_bytes == plain_running.kv_bytes * 3 // 2  # One layer beside two, in as many blocks.
    assert running.kv_tokens == plain_running.kv_tokens == 1600
    assert running.workspace_bytes > plain_running.workspace_bytes


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"speculation": "DRAFT"}, "draft_model is not set, but speculation is DRAFT"),
        ({"draft_model": "x"}, "draft_model = 'x' is set, but speculation is not DRAFT"),
        ({"speculation": "NGRAM", "draft_model": "x"}, "draft_model = 'x' is set, but speculation is not DRAFT"),
    ],
)
def test_a_draft_model_goes_with_its_kind(client: Client, place: Place, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        client.install_model(NAME, path=str(place.folder), **fields, **place.settings)
    assert words in str(refused.value)


@pytest.mark.usefixtures("drafts")
def test_a_draft_model_that_is_not_there_fails_the_install(client: Client, place: Place, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"speculation": "DRAFT", "draft_model": str(tmp_path / "absent"), **place.settings}
    with pytest.raises(StateError, match=r"draft_model: .*no such file or directory") as refused:
        client.install_model(NAME, path=str(place.folder), **fields)
    assert refused.value.reason == "BAD_MODEL"
    client.release_model(NAME)


@pytest.mark.parametrize(
    ("size", "words"),
    [(384, "id 300 is 'ZZ' there, and "), (383, "vocab_size is 383 there, and 384 in the model")],
)
@pytest.mark.usefixtures("drafts")
def test_another_vocabulary_is_refused(client: Client, place: Place, tmp_path: Path, size: int, words: str) -> None:
    """By the number of ids, or the first id that differs, with both values."""
    draft = make_tiny_llama(tmp_path / "draft", vocab_size=size)
    file = draft / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    ids = {token_id: text for text, token_id in tokenizer["model"]["vocab"].items()}
    gone = [ids.pop(token_id) for token_id in (300, *range(size, 384))]
    merges = [merge for merge in tokenizer["model"]["merges"] if not {"".join(merge), *merge} & {*gone}]
    vocabulary = {text: token_id for token_id, text in ids.items()} | {"ZZ": 300}
    tokenizer["model"] |= {"vocab": vocabulary, "merges": merges}
    file.write_text(json.dumps(tokenizer))
    fields: dict[str, Any] = {"speculation": "DRAFT", "draft_model": str(draft), **place.settings}
    with pytest.raises(InvalidRequestError, match="has another vocabulary than the model") as refused:
        client.install_model(NAME, path=str(place.folder), **fields)
    assert words in str(refused.value)
    client.release_model(NAME)


@pytest.mark.sim
def test_a_backend_without_it_refuses_it(client: Client, place: Place) -> None:
    config: dict[str, Any] = {"max_length": 64, "speculation": "GRAMMAR", **place.settings}
    if place.path != SIM:
        client.install_model(NAME, path=str(place.folder), **config)
        client.release_model(NAME)
        return
    with pytest.raises(InvalidRequestError, match="speculation = GRAMMAR is not supported by the cuda") as refused:
        client.install_model(NAME, path=str(place.folder), **config)
    assert refused.value.reason == "NOT_SUPPORTED"


@pytest.mark.parametrize("count", [0, 16])
def test_the_number_of_drafts_has_a_range(client: Client, folders: Folders, count: int) -> None:
    with pytest.raises(InvalidRequestError, match="max_drafts"):
        client.install_model(NAME, path=str(folders.tiny), speculation="NGRAM", max_drafts=count)
