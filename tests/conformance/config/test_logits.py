"""Section 4: what changes the logits that tokens are drawn from, and what is told about the model's own."""

from __future__ import annotations

import json
import math
from collections import Counter

import pytest
from headrace import Client, GeneratedElements, InvalidRequestError
from headrace.types import FinishReason
from support.contract.places import MODEL
from support.servers.wire import Wire

VOCAB = 384
PROMPT = [1, 2, 3, 40, 41, 40, 41]
GREEDY = {"ids": PROMPT, "ignore_eos": True, "do_sample": False, "max_new_tokens": 40}


def _start(client: Client, **fields: object) -> tuple[list[GeneratedElements], FinishReason | None]:
    handle, queue = client.start_request(MODEL, **{**GREEDY, **fields})  # type: ignore[arg-type]
    elements = list(queue)
    client.release_request(handle)
    return elements, queue.finish_reason


def _ids(client: Client, **fields: object) -> list[int]:
    return [token for elements in _start(client, **fields)[0] for token in elements.ids_from_generate]


def _times(ids: list[int], size: int) -> Counter[tuple[int, ...]]:
    return Counter(tuple(ids[i : i + size]) for i in range(len(ids) - size + 1))


def test_bc036_neighbours_without_a_seed_change_nothing(client: Client) -> None:
    fields = {"do_sample": True, "seed": 42, "temperature": 0.8}
    first, *others = (_beside_another(client, **fields) for _ in range(4))
    assert others == [first] * 3


def _beside_another(client: Client, **fields: object) -> list[int]:
    """The tokens of a request while one without a seed is drawn too."""
    other, _ = client.start_request(MODEL, ids=[7, 8], ignore_eos=True, max_new_tokens=120, temperature=1.0)
    ids = _ids(client, **fields)
    client.release_request(other)
    return ids


@pytest.mark.parametrize(
    "tiny", [{"temperature": 1e-5}, {"temperature": 1e-4}, {"top_p": 1e-6}, {"top_p": 1e-4}, {"top_k": 1}]
)
def test_bc040_tiny_temperature_and_top_p_equal_greedy(client: Client, tiny: dict[str, object]) -> None:
    assert _ids(client, do_sample=True, seed=9, **tiny) == _ids(client)


@pytest.mark.parametrize(
    "extreme", [{"temperature": 1e9}, {"temperature": 1e300}, {"top_k": 2**31}, {"top_k": 2**32 - 1}]
)
def test_bc042_extreme_values_in_range_are_drawn_with(client: Client, extreme: dict[str, object]) -> None:
    assert len(_ids(client, do_sample=True, seed=9, **extreme)) == 40


@pytest.mark.sim
def test_bc046_penalties_hold_where_output_is_guided(client: Client) -> None:
    guided = {"response_format": {"type": "regex", "regex": "[a-z]{30,}"}}
    free = _ids(client, **guided)
    assert _ids(client, **guided, presence_penalty=2.0) != free
    assert len(set(_ids(client, **guided, no_repeat_ngram_size=1))) == len(
        _ids(client, **guided, no_repeat_ngram_size=1)
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [("repetition_penalty", 2.0), ("presence_penalty", 2.0), ("frequency_penalty", 2.0), ("no_repeat_ngram_size", 1)],
)
@pytest.mark.sim
def test_bc046_each_penalty_has_its_effect(client: Client, field: str, value: float) -> None:
    """The model alone repeats an id; every penalty makes it repeat less."""
    free = _ids(client)
    assert len(set(free)) < len(free)
    assert len(set(_ids(client, **{field: value}))) > len(set(free))


def test_bc048_no_ngram_comes_twice(client: Client) -> None:
    for size in (2, 3):
        ids = [*PROMPT, *_ids(client, no_repeat_ngram_size=size, max_new_tokens=200)]
        before = _times(PROMPT, size)
        assert {ngram for ngram, count in _times(ids, size).items() if count > 1} <= {
            ngram for ngram, count in before.items() if count > 1
        }
    assert _ids(client, no_repeat_ngram_size=1000) == _ids(client)


def test_bc048_where_every_id_was_there_the_request_ends(client: Client) -> None:
    """Ten ids may come, each once: four stand in the prompt."""
    elements, reason = _start(client, ids=[5, 6, 7, 8], allowed_token_ids=list(range(5, 15)), no_repeat_ngram_size=1)
    assert sorted(token for one in elements for token in one.ids_from_generate) == list(range(9, 15))
    assert reason is FinishReason.NO_TOKEN_LEFT


def test_suppressed_repetition_uses_the_presence_penalty_alone(client: Client) -> None:
    present = _ids(client, presence_penalty=1.5)
    suppressed = {"suppress_repetition_in_generation": True, "repetition_penalty": 1.9}
    assert _ids(client, presence_penalty=1.5, **suppressed) == present
    assert _ids(client, **suppressed) == _ids(client)


@pytest.mark.sim
def test_bad_words_are_never_completed(client: Client) -> None:
    free = _ids(client)
    pair = free[:2]
    bad = [[free[5]], pair]
    ids = _ids(client, bad_words_ids=bad)
    assert free[5] not in ids
    assert tuple(pair) not in _times(ids, 2)
    assert ids[0] == pair[0]


def test_bad_words_are_spelled_by_the_tokenizer(client: Client) -> None:
    """With and without a space before them."""
    plain, spaced, other = (client.tokenize(MODEL, text, add_special_tokens=False).ids for text in ("a", " a", "b"))
    assert (len(plain), len(spaced), len(other)) == (1, 1, 1)
    assert _ids(client, allowed_token_ids=[*plain, *spaced, *other], bad_words=["a"]) == other * 40


@pytest.mark.ranks
@pytest.mark.sim
def test_bias_and_allowed_ids(client: Client) -> None:
    assert set(_ids(client, allowed_token_ids=[9, 10, 11])) <= {9, 10, 11}
    assert _ids(client, logit_bias={17: 1000.0}) == [17] * 40
    assert _ids(client, logit_bias={17: 1000.0, 18: 1e300}, max_new_tokens=3) == [18] * 3
    first = _ids(client)[0]
    assert _ids(client, logit_bias={first: -1000.0})[0] != first


def test_ids_that_may_be_drawn_are_drawn_by_their_probability(client: Client) -> None:
    drawn = _ids(client, do_sample=True, seed=3, allowed_token_ids=[9, 10], temperature=5.0, max_new_tokens=200)
    assert set(drawn) == {9, 10}


@pytest.mark.ranks
@pytest.mark.sim
def test_penalties_hold_with_a_seed_and_in_company(client: Client) -> None:
    fields = {"do_sample": True, "seed": 5, "repetition_penalty": 1.3, "frequency_penalty": 0.4, "bad_words_ids": [[7]]}
    alone = _ids(client, **fields)
    others = [client.start_request(MODEL, ids=[7, 8, i], ignore_eos=True, max_new_tokens=60)[0] for i in range(1, 6)]
    assert _ids(client, **fields) == alone
    for handle in others:
        client.release_request(handle)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"bad_words_ids": [[1], []]}, r"bad_words_ids\[1\].*empty"),
        ({"bad_words_ids": [[VOCAB]]}, r"bad_words_ids\[0\].*383"),
        ({"bad_words": ["a", ""]}, r"bad_words\[1\].*empty"),
        ({"allowed_token_ids": [VOCAB]}, "allowed_token_ids.*383"),
        ({"logit_bias": {VOCAB: 1.0}}, "logit_bias.*383"),
        ({"logit_bias": {1: math.inf}}, "logit_bias.*not finite"),
        ({"top_logprobs": 5}, "top_logprobs = 5 needs logprobs"),
    ],
)
def test_what_means_nothing_is_refused(client: Client, fields: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as refusal:
        client.start_request(MODEL, ids=[1, 2], **fields)  # type: ignore[arg-type]
    assert refusal.value.reason == "INVALID_FIELD"


@pytest.mark.parametrize("count", [21, VOCAB, 2**31 - 1])
def test_bc061_more_alternatives_than_20_are_refused(client: Client, count: int) -> None:
    with pytest.raises(InvalidRequestError, match=r"top_logprobs.*at most 20"):
        client.start_request(MODEL, ids=[1], logprobs=True, top_logprobs=count)


@pytest.mark.parametrize("count", [1, 2, 5, 20])
@pytest.mark.sim
def test_bc054_exactly_as_many_alternatives_as_were_asked_for(client: Client, count: int) -> None:
    """Hot, so that some chosen token is not among them; its own value stands in token_logprobs_list."""
    fields = {"do_sample": True, "seed": 1, "temperature": 30.0, "logprobs": True, "top_logprobs": count}
    elements, _ = _start(client, **fields)
    ids = [token for one in elements for token in one.ids_from_generate]
    chosen = [value for one in elements for value in one.token_logprobs_list]
    rows = [row for one in elements for row in one.log_probs_list]
    assert len(ids) == len(chosen) == len(rows) == 40
    for token_id, value, row in zip(ids, chosen, rows, strict=True):
        assert len(row) == len({other for other, _ in row}) == count
        assert [logprob for _, logprob in row] == sorted((logprob for _, logprob in row), reverse=True)
        assert value == dict(row).get(token_id, value)
        assert value <= row[0][1]
    assert any(token_id not in dict(row) for token_id, row in zip(ids, rows, strict=True))


def test_bc056_logprobs_without_alternatives(client: Client) -> None:
    elements, _ = _start(client, logprobs=True)
    assert sum(len(one.token_logprobs_list) for one in elements) == 40
    assert all(one.log_probs_list == [[]] * len(one.ids_from_generate) for one in elements)
    plain, _ = _start(client)
    assert all(one.token_logprobs_list == one.log_probs_list == [] for one in plain)


@pytest.mark.parametrize("cut", [{"top_k": 1}, {"top_p": 0.1}, {"allowed_token_ids": [9]}, {"repetition_penalty": 2.0}])
def test_bc053_cut_tokens_have_finite_logprobs_in_json(client: Client, wire: Wire, cut: dict[str, object]) -> None:
    """They are those of the model's own logits: nothing that is cut or penalized is infinite there."""
    config = {"do_sample": True, "temperature": 0.01, "seed": 3, "logprobs": True, "top_logprobs": 5}
    elements, _ = _start(client, **{**config, **cut})
    values = [value for one in elements for row in one.log_probs_list for _, value in row]
    assert len(values) == 5 * 40
    assert all(math.isfinite(value) and value <= 0 for value in values)
    assert json.loads(json.dumps(values, allow_nan=False)) == values


@pytest.mark.sim
def test_logprobs_are_the_models_own_whatever_is_changed(client: Client) -> None:
    """The first token's alternatives depend on the prompt alone."""
    reported = {"logprobs": True, "top_logprobs": 3, "max_new_tokens": 1}
    own = _start(client, **reported)[0][0].log_probs_list
    for fields in ({"logit_bias": {17: 1000.0}}, {"repetition_penalty": 2.0}, {"allowed_token_ids": [300]}):
        assert _start(client, **reported, **fields)[0][0].log_probs_list == own
    assert sum(math.exp(value) for _, value in own[0]) <= 1


def test_bc060_alternatives_carry_their_ids(client: Client) -> None:
    elements, _ = _start(client, logprobs=True, top_logprobs=20)
    pieces = client.detokenize(MODEL, [token for token, _ in elements[0].log_probs_list[0]]).pieces
    assert len(pieces) == 20


def test_bc058_the_lists_of_a_stopped_request_have_one_length(client: Client) -> None:
    free = _ids(client)
    end = free[3]
    fields = {"ignore_eos": False, "eos_token_id": [end], "logprobs": True, "top_logprobs": 2}
    elements, reason = _start(client, **fields)
    ids = [token for one in elements for token in one.ids_from_generate]
    assert reason is FinishReason.EOS
    assert ids == free[: free.index(end) + 1]
    assert sum(len(one.token_logprobs_list) for one in elements) == len(ids)
    assert sum(len(one.log_probs_list) for one in elements) == len(ids)


def test_bc062_stopping_at_any_token_leaves_lists_of_one_length(client: Client) -> None:
    for read in range(9):
        handle, queue = client.start_request(
            MODEL, ids=PROMPT, ignore_eos=True, max_new_tokens=200, logprobs=True, top_logprobs=5
        )
        elements = []
        while sum(len(one.ids_from_generate) for one in elements) < read:
            elements.append(queue.Get())
        client.stop_request(handle)
        elements += list(queue)
        for one in elements:
            assert len(one.token_logprobs_list) == len(one.log_probs_list) == len(one.ids_from_generate)
        client.release_request(handle)


def test_minimum_lengths_mask_eos_in_every_draw(client: Client) -> None:
    free = _ids(client)
    ids = _ids(client, ignore_eos=False, eos_token_id=free[:3], min_new_tokens=10, repetition_penalty=1.1)
    assert len(ids) >= 10
    assert not set(ids[:10]) & set(free[:3])
