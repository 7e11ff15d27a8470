"""`speculation`: results are those without it, and what was drafted is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from headrace import Client, InvalidRequestError
from headrace.types import FinishReason
from support.contract.places import MODEL, SIM, Folders, Place

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
def drafting(client: Client, folders: Folders) -> Iterator[str]:
    """The model of the path, with speculation."""
    client.install_model(
        NAME, path=str(folders.tiny), max_length=256, max_batch=8, num_threads=1, speculation="NGRAM", max_drafts=6
    )
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


def test_results_are_those_without(client: Client, drafting: str) -> None:
    plain, undrafted = answers(client, MODEL)
    [first] = client.engine_stats(drafting)  # Counters of a name go on where it is installed again.
    with_drafts, drafts = answers(client, drafting)
    for before, after in zip(plain, with_drafts, strict=True):
        assert [one[:3] for one in before] == [one[:3] for one in after]
        for (*_, expected), (*_, given) in zip(before, after, strict=True):
            assert given == pytest.approx(expected, abs=1e-3)
    assert set(undrafted) == {(0, 0)}
    assert drafts[-1] == (0, 0)
    [stat] = client.engine_stats(drafting)
    drafted, accepted = map(sum, zip(*drafts, strict=True))
    assert stat.drafted_tokens - first.drafted_tokens == drafted
    assert drafted >= stat.accepted_tokens - first.accepted_tokens == accepted


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
