"""Section 4: num_beams, beam_stopping and length_penalty, beside transformers on the same model."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from headrace import Client, InvalidRequestError
from headrace.types import FinishReason, GenerateStatus
from headrace_engine.characters.detokenizer import Detokenizer
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.tokenizer import TokenizerBundle, load_tokenizer
from support.backends.torch_sequences import reference
from support.clocks.waiting import wait_until
from support.contract.places import LONG_MODEL, MODEL, Place
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

EOS = list(range(0, 384, 8))
SEARCH: dict[str, Any] = {"ids": [1, 2, 3], "num_beams": 4, "n": 3, "max_new_tokens": 20, "eos_token_id": EOS}

model = cache(reference)


class Says(StoppingCriteria):  # type: ignore[misc]
    """A text ends where what is generated says one of these words."""

    def __init__(self, words: list[str], prompt: int, tokens: TokenizerBundle) -> None:
        self.words, self.prompt, self.tokens = words, prompt, tokens

    def __call__(self, input_ids: torch.Tensor, scores: Any, **others: Any) -> torch.Tensor:
        texts = [text_of(self.tokens, row[self.prompt :]) for row in input_ids.tolist()]
        return torch.tensor([any(word in text for word in self.words) for text in texts])


class EndsWith(StoppingCriteria):  # type: ignore[misc]
    """A text ends where its generated ids end with one of these."""

    def __init__(self, stops: list[list[int]], prompt: int) -> None:
        self.stops, self.prompt = stops, prompt

    def __call__(self, input_ids: torch.Tensor, scores: Any, **others: Any) -> torch.Tensor:
        rows = [row[self.prompt :] for row in input_ids.tolist()]
        return torch.tensor([any(row[-len(stop) :] == stop for stop in self.stops) for row in rows])


def text_of(tokens: TokenizerBundle, ids: list[int]) -> str:
    return Detokenizer(tokens.token_bytes, tokens.special_ids).decode(ids)


def transformers_texts(path: Path, stopping: bool | str, penalty: float) -> list[list[int]]:
    config = GenerationConfig(
        num_beams=4, num_return_sequences=3, early_stopping=stopping, length_penalty=penalty, max_new_tokens=20,
        eos_token_id=EOS, pad_token_id=0, do_sample=False, repetition_penalty=1.2,
    )  # fmt: skip
    prompt = torch.tensor([SEARCH["ids"]])
    rows = model(path).generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=config)
    texts = [row.tolist()[3:] for row in rows]
    return [text[: next((place + 1 for place, token in enumerate(text) if token in EOS), 20)] for text in texts]


def read(client: Client, **fields: Any) -> list[list[int]]:
    handle, queue = client.start_request(MODEL, **{**SEARCH, **fields})
    texts = [[token for each in choice for token in each.ids_from_generate] for choice in queue.choices]
    client.release_request(handle)
    return texts


@pytest.mark.parametrize(("ours", "theirs"), [("HEURISTIC", False), ("FIRST", True), ("NEVER", "never")])
@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_texts_are_those_of_transformers(
    client: Client, place: Place, ours: Any, theirs: bool | str, penalty: float
) -> None:
    found = read(client, beam_stopping=ours, length_penalty=penalty, repetition_penalty=1.2)
    assert found == transformers_texts(place.folder, theirs, penalty)


def test_they_end_as_other_sequences_do(client: Client) -> None:
    handle, queue = client.start_request(MODEL, **SEARCH, logprobs=True, top_logprobs=2)
    scores = []
    for choice in queue.choices:
        elements = list(choice)
        ids = [token for each in elements for token in each.ids_from_generate]
        values = [value for each in elements for value in each.token_logprobs_list]
        tops = [top for each in elements for top in each.log_probs_list]
        assert len(ids) == len(values) == len(tops) == choice.GeneratedLength()
        assert all(len(top) == 2 for top in tops)
        reason = FinishReason.EOS if ids[-1] in EOS else FinishReason.MAX_LENGTH
        assert (choice.finish_reason, choice.GenerateStatus()) == (reason, GenerateStatus.GenerateFinished)
        scores.append(sum(values) / len(ids))
    assert scores == sorted(scores, reverse=True)
    config = client.get_request(handle).request.effective_config
    assert (config["num_beams"], config["do_sample"], config["beam_stopping"]) == (4, False, "HEURISTIC")
    client.release_request(handle)


@pytest.mark.ranks
@pytest.mark.sim
def test_texts_differ_and_share_one_prompt(client: Client) -> None:
    texts = read(client, n=4)
    assert len({tuple(text) for text in texts}) == 4
    assert read(client, n=1) == texts[:1]


def test_nothing_is_readable_before_the_search_ends(client: Client) -> None:
    """Meanwhile the statistics tell how long its beams are."""
    fields = {"ids": [1, 2, 3], "num_beams": 2, "max_new_tokens": 9000, "ignore_eos": True}
    handle, queue = client.start_request(LONG_MODEL, **fields)
    wait_until(lambda: client.get_request(handle).sequences[0].stat["generated_token_length"] > 1, "no beam grows")
    view = client.get_request(handle).sequences[0]
    assert view.generated_length == 0
    assert queue.GetNoWait() is None
    client.stop_request(handle)
    client.release_request(handle)


def test_a_search_that_is_stopped_has_no_text(client: Client) -> None:
    handle, queue = client.start_request(LONG_MODEL, ids=[1, 2], num_beams=2, max_new_tokens=9000, ignore_eos=True)
    client.stop_request(handle)
    assert queue.Get() is None
    assert queue.finish_reason is FinishReason.STOPPED
    assert queue.GeneratedLength() == 0
    client.release_request(handle)


def test_a_grammar_holds_for_each_text(client: Client) -> None:
    handle, queue = client.start_request(
        MODEL, ids=[1, 2], num_beams=4, n=4, max_new_tokens=30, response_format={"type": "regex", "regex": "(ab|cd|e)+"}
    )
    texts = ["".join(each.text for each in choice) for choice in queue.choices]
    assert len(set(texts)) == 4
    assert all(set(text) <= set("abcde") for text in texts)
    client.release_request(handle)


@pytest.mark.parametrize(
    ("fields", "named", "reason"),
    [
        ({"n": 5}, "n", "INVALID_FIELD"),
        ({"best_of": 4}, "best_of", "INVALID_FIELD"),
        ({"do_sample": True}, "do_sample", "NOT_SUPPORTED"),
        ({"enable_tensors_from_model_inference": True}, "enable_tensors_from_model_inference", "NOT_SUPPORTED"),
        ({"num_beams": 65}, "num_beams", "INVALID_FIELD"),
        ({"num_beams": 64, "n": 1}, "num_beams", "INVALID_FIELD"),  # More than max_batch.
        ({"num_beams": 1, "n": 1, "beam_stopping": "NEVER"}, "beam_stopping", "INVALID_FIELD"),
    ],
)
def test_what_does_not_go_with_beams_is_refused(client: Client, fields: Any, named: str, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{named} ") as refusal:
        client.start_request(MODEL, **{**SEARCH, **fields})
    assert refusal.value.reason == reason
    assert refusal.value.details["field_violations"][0]["field"] == f"config.{named}"


def test_stop_ids_end_texts_as_eos_does(client: Client) -> None:
    by_eos = read(client)
    by_stops = read(client, eos_token_id=None, ignore_eos=True, stop_token_ids=EOS)
    assert by_stops == by_eos


STOPPED: dict[str, Any] = {"eos_token_id": [2], "length_penalty": 0.0}


def generated_until(path: Path, criterion: StoppingCriteria) -> list[list[int]]:
    """What generate of transformers returns for STOPPED where a criterion ends texts."""
    config = GenerationConfig(
        num_beams=4, num_return_sequences=3, early_stopping=False, length_penalty=0.0, max_new_tokens=20,
        eos_token_id=[2], pad_token_id=0, do_sample=False,
    )  # fmt: skip
    prompt = torch.tensor([SEARCH["ids"]])
    rows = model(path).generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        generation_config=config,
        stopping_criteria=StoppingCriteriaList([criterion]),
    )
    return [row.tolist()[3:] for row in rows]


@pytest.mark.parametrize("seed", range(4))
def test_stops_of_several_ids_end_texts(client: Client, place: Place, seed: int) -> None:
    """Where generate of transformers ends them, by a criterion."""
    rng = random.Random(seed)
    places = [(text, rng.randrange(2, 14)) for text in read(client, **STOPPED)]
    stops = [text[place : place + rng.randint(1, 3)] for text, place in places]
    found = read(client, **STOPPED, stop_words_ids=stops)
    rows = generated_until(place.folder, EndsWith(stops, len(SEARCH["ids"])))
    assert found == [until_stop(row, [*stops, [2]]) for row in rows]
    assert any(text[-len(stop) :] == stop for text in found for stop in stops)


@pytest.mark.parametrize("seed", range(4))
def test_stop_words_end_texts(client: Client, place: Place, seed: int) -> None:
    """Where generate of transformers ends them, by a criterion that decodes each beam; texts end before the word."""
    rng, tokens = random.Random(seed), load_tokenizer(open_model(str(place.folder)))
    words = []
    for text in (text_of(tokens, ids) for ids in read(client, **STOPPED)):
        length = rng.randint(2, 4)
        parts = [text[begin : begin + length] for begin in range(len(text) - length)]
        words.append(rng.choice([part for part in parts if "\ufffd" not in part]))
    handle, queue = client.start_request(MODEL, **{**SEARCH, **STOPPED}, stop_words=words)
    found, said = [], []
    for choice in queue.choices:
        elements = list(choice)
        found.append([token for each in elements for token in each.ids_from_generate])
        said.append("".join(each.text for each in elements))
    rows = generated_until(place.folder, Says(words, len(SEARCH["ids"]), tokens))
    assert found == [until_word(row, words, tokens) for row in rows]
    assert FinishReason.STOP_WORD in [choice.finish_reason for choice in queue.choices]
    assert not any(word in text for text in said for word in words)
    client.release_request(handle)


def until_word(ids: list[int], words: list[str], tokens: TokenizerBundle) -> list[int]:
    """Return the ids up to EOS, or the first that completes a word."""
    ends = (
        end
        for end in range(1, len(ids) + 1)
        if ids[end - 1] == 2 or any(word in text_of(tokens, ids[:end]) for word in words)
    )
    return ids[: next(ends, len(ids))]


def until_stop(ids: list[int], stops: list[list[int]]) -> list[int]:
    ends = (end for end in range(1, len(ids) + 1) if any(ids[:end][-len(stop) :] == stop for stop in stops))
    return ids[: next(ends, len(ids))]
