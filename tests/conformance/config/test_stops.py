"""Sections 3 and 4: what ends a request before its limits, and what readers see of it.

A choice of one makes the model say what the test needs, in tokens of its own choosing.
"""

from __future__ import annotations

from typing import Any

import pytest
from headrace import Client, InvalidRequestError, ResultQueue
from headrace.types import FinishReason, GeneratedElements
from support.contract.places import MODEL

IM_END = 2
FREE = {"ids": [1, 2, 3], "do_sample": False, "ignore_eos": True, "max_new_tokens": 40}


def says(text: str, **fields: Any) -> dict[str, Any]:
    """The fields of a request whose text is this one, up to a stop."""
    message = {"type": "choice", "choices": [text]}
    return {"ids": [1, 2, 3], "response_format": message, "eos_token_id": [IM_END], "seed": 1, **fields}


def run(client: Client, **fields: Any) -> tuple[list[GeneratedElements], ResultQueue]:
    """All elements of a request, and its queue."""
    handle, queue = client.start_request(MODEL, **fields)
    elements = list(queue)
    client.release_request(handle)
    return elements, queue


def text_of(elements: list[GeneratedElements]) -> str:
    return "".join(element.text for element in elements)


def ids_of(elements: list[GeneratedElements]) -> list[int]:
    return [token_id for element in elements for token_id in element.ids_from_generate]


def match_of(queue: ResultQueue) -> tuple[str, int, str] | None:
    """What the end says of the stop."""
    if queue.finish_reason is not FinishReason.STOP_WORD:
        assert queue.stop_match is None
        return None
    match = queue.stop_match
    assert match is not None
    return match.kind, match.index, match.text


@pytest.mark.parametrize(("include", "text"), [(False, "L M N "), (True, "L M N O P Q")])
@pytest.mark.sim
def test_bc013_a_stop_word_of_several_tokens(client: Client, include: bool, text: str) -> None:
    fields = says("L M N O P Q R S", stop_words=["zzz", "O P Q"], include_stop=include)
    elements, queue = run(client, **fields)
    assert text_of(elements) == text
    assert match_of(queue) == ("STOP_WORDS", 1, "O P Q")
    assert client.detokenize(MODEL, ids_of(elements)).text.startswith("L M N O P Q")
    assert "R" not in client.detokenize(MODEL, ids_of(elements)).text


def test_bc014_a_stop_word_inside_a_merged_token(client: Client) -> None:
    merged = client.tokenize(MODEL, "?\n").ids
    assert len(merged) == 1
    elements, queue = run(client, **says("Mars?\n", stop_words=["\n"], logit_bias={merged[0]: 100.0}))
    assert (text_of(elements), match_of(queue)) == ("Mars?", ("STOP_WORDS", 0, "\n"))
    assert ids_of(elements)[-1] == merged[0]


def test_bc016_no_element_shows_a_part_of_a_stop_word(client: Client) -> None:
    elements, queue = run(client, **says("abc<START>zzz", stop_words=["<START>", "START>z"]))
    assert text_of(elements) == "abc"
    assert match_of(queue) == ("STOP_WORDS", 0, "<START>")


def test_bc022_a_special_token_given_as_text(client: Client) -> None:
    fields = says("ab", stop_words=["<|im_end|>"])
    elements, queue = run(client, **fields)
    assert (text_of(elements), ids_of(elements)[-1]) == ("ab", IM_END)
    assert match_of(queue) == ("STOP_WORDS", 0, "<|im_end|>")
    shown, _ = run(client, **fields, include_stop=True)
    assert text_of(shown) == "ab<|im_end|>"


@pytest.mark.parametrize(("include", "shown"), [(False, ""), (True, "<|im_end|>")])
def test_eos_is_in_the_text_only_where_it_is_asked_for(client: Client, include: bool, shown: str) -> None:
    elements, queue = run(client, **says("ab", skip_special_tokens=False, include_stop=include))
    assert (text_of(elements), queue.finish_reason) == ("ab" + shown, FinishReason.EOS)


def test_bc026_a_stop_word_that_never_comes(client: Client) -> None:
    elements, queue = run(client, **says("abc", stop_words=["q", "cd"]))
    assert (text_of(elements), queue.finish_reason, queue.stop_match) == ("abc", FinishReason.EOS, None)


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("stop_words", [""], "stop_words[0]"), ("stop_words_ids", [[5], []], "stop_words_ids[1]"),
        ("stop_words_ids", [[384]], "stop_words_ids[0]"), ("stop_token_ids", [384], "stop_token_ids"),
        ("stop_words", ["x" * 65_537], "stop_words"),
    ],
)  # fmt: skip
def test_bc026_stops_that_are_none_are_refused_by_name(client: Client, field: str, value: Any, named: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        client.start_request(MODEL, ids=[1], **{field: value})
    assert refusal.value.details["field_violations"][0]["field"] == f"config.{named}"


@pytest.mark.sim
def test_bc017_stop_ids_stop_on_those_ids_only(client: Client) -> None:
    free = ids_of(run(client, **FREE)[0])
    end = next(place for place in range(2, 20) if free.index(free[place]) == place)
    elements, queue = run(client, **FREE, stop_token_ids=[free[end]])
    assert ids_of(elements) == free[: end + 1]
    assert match_of(queue) == (
        "STOP_TOKEN_IDS",
        0,
        client.detokenize(MODEL, [free[end]], skip_special_tokens=False).text,
    )
    elements, queue = run(client, **FREE, stop_words_ids=[[383, 383], free[end - 1 : end + 1]])
    assert ids_of(elements) == free[: end + 1]
    assert text_of(elements) == client.detokenize(MODEL, free[: end - 1]).text
    assert match_of(queue)[:2] == ("STOP_WORDS_IDS", 1)  # type: ignore[index]


def test_stop_ids_may_not_begin_in_the_prompt(client: Client) -> None:
    free = ids_of(run(client, **FREE)[0])
    elements, queue = run(client, **FREE, stop_words_ids=[[3, free[0]]])
    assert (ids_of(elements), queue.finish_reason) == (free, FinishReason.MAX_LENGTH)


@pytest.mark.parametrize("stop", [{"stop_words": ["b"]}, {"stop_words_ids": [[101]]}, {"stop_token_ids": [101]}])
@pytest.mark.parametrize("field", ["min_new_tokens", "min_length"])
def test_bc019_stops_before_the_minimum_end_nothing(client: Client, field: str, stop: dict[str, Any]) -> None:
    (b,) = client.tokenize(MODEL, "b").ids
    assert b == 101
    minimum = {field: 20 + 3 * (field == "min_length")}
    message = {"ids": [1, 2, 3], "allowed_token_ids": [b], "max_new_tokens": 60, **stop}
    assert len(ids_of(run(client, **message)[0])) == 1
    elements, queue = run(client, **message, **minimum)
    assert len(ids_of(elements)) == 21
    assert queue.finish_reason is FinishReason.STOP_WORD
    assert text_of(elements) == "b" * 20


@pytest.mark.ranks
@pytest.mark.sim
def test_bc024_what_is_counted_is_what_was_delivered(client: Client) -> None:
    before = _generated(client)
    elements, queue = run(
        client, **says("x" * 10 + "STOP" + "y" * 150, stop_words=["STOP"], logprobs=True, top_logprobs=2)
    )
    ids = ids_of(elements)
    assert text_of(elements) == "x" * 10
    assert len(ids) <= 14
    assert queue.GeneratedLength() == len(ids) == queue.RequestStatInfo()["generated_token_length"]
    assert sum(len(element.token_logprobs_list) for element in elements) == len(ids)
    assert sum(len(element.log_probs_list) for element in elements) == len(ids)
    assert _generated(client) - before == len(ids)


def _generated(client: Client) -> int:
    return sum(stat.generated_tokens for stat in client.engine_stats())


def test_bc035_text_that_turns_out_to_be_no_stop_is_delivered(client: Client) -> None:
    elements, queue = run(client, **says("ABCDEFX", stop_words=["DEFGHIJ"]))
    assert (text_of(elements), queue.finish_reason) == ("ABCDEFX", FinishReason.EOS)
    cut, queue = run(client, **says("ABCDEFX", stop_words=["DEFGHIJ"], max_new_tokens=5))
    assert (text_of(cut), queue.finish_reason) == ("ABCDE", FinishReason.MAX_LENGTH)
    assert len(ids_of(cut)) == 5


def test_whoever_reads_again_reads_the_same(client: Client) -> None:
    handle, queue = client.start_request(MODEL, **says("one, two<END>three", stop_words=["<END>"]))
    client.sync_request(handle)
    whole = list(queue)
    for position in range(len(ids_of(whole)) + 1):
        again = client.open_queue(handle, from_position=position)
        rest = list(again)
        assert ids_of(rest) == ids_of(whole)[position:]
        assert match_of(again) == match_of(queue) == ("STOP_WORDS", 0, "<END>")
        assert "one, two".endswith(text_of(rest))
    view = client.get_request(handle)
    assert view.sequences[0].stop_match == queue.stop_match
    client.release_request(handle)


def test_the_one_shot_call_ends_there_too(client: Client) -> None:
    message = {"type": "choice", "choices": ["one, two<END>three"]}
    assert "".join(client.generate(MODEL, ids=[1, 2, 3], response_format=message, stop_words=["<END>"])) == "one, two"


def test_stops_are_in_the_effective_config(client: Client) -> None:
    sent = {
        "stop_words": ["é", "<|im_end|>"],
        "stop_words_ids": [[5, 6], [7]],
        "stop_token_ids": [9],
        "include_stop": True,
    }
    handle, queue = client.start_request(MODEL, ids=[1], max_new_tokens=1, **sent)  # type: ignore[arg-type]
    effective = queue.request.effective_config
    assert {name: effective[name] for name in sent} == sent
    client.release_request(handle)
