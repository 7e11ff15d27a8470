"""Section 4: logits processors, which the engine's operator names and requests choose."""

from __future__ import annotations

import math
from typing import Any

import pytest
from headrace import Client, InternalServerError, InvalidRequestError
from headrace.types import FinishReason
from support.contract.places import MODEL, SMALL_POOL_MODEL
from support.models.processor_files import PROCESSORS, by_history

PROMPT = [1, 2, 3, 40, 41, 40, 41]
GREEDY = {"ids": PROMPT, "ignore_eos": True, "do_sample": False, "max_new_tokens": 30}


def _call(name: str, *arguments: float) -> dict[str, Any]:
    return {"name": name, "arguments": list(arguments)}


def _run(client: Client, *calls: dict[str, Any], model: str = MODEL, **fields: Any) -> tuple[list[list[int]], Any]:
    """The ids of each sequence, and the queue of the first."""
    given = {**GREEDY, **fields, "logits_processors": list(calls)}
    handle, queue = client.start_request(model, **given)
    queues = queue.choices
    ids = [[token for elements in each for token in elements.ids_from_generate] for each in queues]
    client.release_request(handle)
    return ids, queue


def _ids(client: Client, *calls: dict[str, Any], **fields: Any) -> list[int]:
    return _run(client, *calls, **fields)[0][0]


def test_the_model_tells_which_there_are(client: Client) -> None:
    (info,) = client.get_model(MODEL)
    assert info.effective is not None
    assert info.effective.logits_processors == info.logits_processors == tuple(PROCESSORS)
    (listed,) = [model for model in client.list_models() if model.model_name == MODEL]
    assert (listed.effective, listed.logits_processors) == (None, tuple(PROCESSORS))


def test_it_is_given_all_ids_and_the_arguments(client: Client) -> None:
    assert _ids(client, _call("by-history")) == by_history(PROMPT, 30)
    assert _ids(client, _call("add", 17, 1e4)) == [17] * 30


@pytest.mark.ranks
@pytest.mark.sim
def test_several_are_called_in_their_order(client: Client) -> None:
    ids = _ids(client, _call("add", 17, 2e4), _call("add", 18, 1e4), _call("no-repeat"))
    assert ids == [17, 18] * 15


def test_none_changes_nothing(client: Client) -> None:
    plain = _ids(client)
    assert _ids(client, _call("add", 17, 0.0)) == plain
    drawn = {"do_sample": True, "seed": 7, "top_k": 50, "top_p": 0.9}
    assert _ids(client, _call("add", 17, 0.0), **drawn) == _ids(client, **drawn)


def test_a_seed_brings_the_same_tokens_alone_and_in_company(client: Client) -> None:
    fields = {"do_sample": True, "seed": 11, "temperature": 1.3}
    alone = _ids(client, _call("no-repeat"), **fields)
    assert all(a != b for a, b in zip([PROMPT[-1], *alone], alone, strict=False))
    others = [
        client.start_request(MODEL, ids=[7, 8, i], ignore_eos=True, max_new_tokens=40, logits_processors=calls)[0]
        for i in range(1, 3)
        for calls in ([], [_call("no-repeat")])
    ]
    assert _ids(client, _call("no-repeat"), **fields) == alone
    for handle in others:
        client.release_request(handle)


@pytest.mark.sim
def test_every_sequence_of_a_request_is_processed_by_its_own_ids(client: Client) -> None:
    drawn = {"do_sample": True, "seed": 5, "temperature": 2.0, "n": 3}
    several, _ = _run(client, _call("no-repeat"), **drawn)
    assert len({tuple(ids) for ids in several}) == 3
    assert all(a != b for ids in several for a, b in zip([PROMPT[-1], *ids], ids, strict=False))


def test_candidates_are_processed(client: Client) -> None:
    drawn = {"do_sample": True, "seed": 5, "temperature": 2.0, "n": 2, "best_of": 4}
    best, _ = _run(client, _call("by-history"), **drawn)
    assert best == [by_history(PROMPT, 30)] * 2


def test_what_the_rules_forbid_stays_forbidden(client: Client) -> None:
    assert set(_ids(client, _call("raise-all"), bad_words_ids=[[0], [1]])) == {2}
    assert set(_ids(client, _call("raise-all"), allowed_token_ids=[9, 12])) == {9}
    assert _ids(client, _call("add", 17, 1e4), no_repeat_ngram_size=1).count(17) == 1
    eos = _ids(client, _call("add", 17, 1e4), eos_token_id=[17], ignore_eos=False, min_new_tokens=5)
    assert 17 not in eos[:5]
    assert eos[5:] == [17]


def test_what_a_grammar_forbids_stays_forbidden(client: Client) -> None:
    guided = {"response_format": {"type": "regex", "regex": "[a-z]{12}"}, "ignore_eos": False}
    assert _run(client, _call("raise-all"), **guided)[0] != _run(client, **guided)[0]
    for call in (_call("raise-all"), _call("by-history"), _call("no-repeat")):
        ids, queue = _run(client, call, **guided)
        text = client.detokenize(MODEL, ids[0]).text
        assert len(text) == 12
        assert text.isalpha()
        assert text.islower()
        assert queue.finish_reason is FinishReason.EOS


def test_stops_end_what_is_processed(client: Client) -> None:
    wanted = by_history(PROMPT, 30)
    ids, queue = _run(client, _call("by-history"), stop_words_ids=[wanted[9:11]])
    assert ids[0] == wanted[:11]
    assert queue.finish_reason is FinishReason.STOP_WORD


@pytest.mark.sim
def test_log_probabilities_are_the_models_own(client: Client) -> None:
    reported = {"logprobs": True, "top_logprobs": 3, "max_new_tokens": 1}
    handle, queue = client.start_request(MODEL, **{**GREEDY, **reported})
    (own,) = queue
    client.release_request(handle)
    handle, queue = client.start_request(MODEL, **{**GREEDY, **reported}, logits_processors=[_call("add", 17, 1e4)])
    (processed,) = queue
    client.release_request(handle)
    assert processed.ids_from_generate == [17]
    pairs = zip(processed.log_probs_list[0], own.log_probs_list[0], strict=True)
    assert all(a == c and math.isclose(b, d, abs_tol=1e-5) for (a, b), (c, d) in pairs)
    assert processed.token_logprobs_list[0] < own.token_logprobs_list[0]


def test_where_it_leaves_nothing_the_request_ends(client: Client) -> None:
    ids, queue = _run(client, _call("end"))
    assert ids == [[]]
    assert queue.finish_reason is FinishReason.NO_TOKEN_LEFT


def test_what_fails_ends_its_own_request_alone(client: Client) -> None:
    other, beside = client.start_request(MODEL, **GREEDY, logits_processors=[_call("by-history")])
    handle, queue = client.start_request(MODEL, **GREEDY, logits_processors=[_call("fail", len(PROMPT) + 4)])
    ids: list[int] = []
    with pytest.raises(InternalServerError, match="logits processor 'fail': LookupError: no such word"):
        for elements in queue:
            ids += elements.ids_from_generate
    assert len(ids) == 4
    assert [token for elements in beside for token in elements.ids_from_generate] == by_history(PROMPT, 30)
    for each in (handle, other):
        client.release_request(each)
    assert _ids(client, _call("by-history")) == by_history(PROMPT, 30)


def test_preemption_changes_nothing(client: Client) -> None:
    """Six sequences of 70 tokens do not fit into 20 blocks of 16: some give way, and are computed again."""
    fields = {"ids": [5, 6, 7, 8], "max_new_tokens": 66, "n": 6, "logits_processors": [_call("by-history")]}
    handle, queue = client.start_request(SMALL_POOL_MODEL, **{**GREEDY, **fields})
    for each in queue.choices:
        ids = [token for elements in each for token in elements.ids_from_generate]
        assert ids == by_history([5, 6, 7, 8], 66)
    assert sum(each.RequestStatInfo()["preemptions"] for each in queue.choices) > 0
    client.release_request(handle)


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        ([{"name": "adn"}], r'logits_processors\[0\].name = "adn" is not a logits processor.*allowed: add, no-repeat'),
        ([{"arguments": [1.0]}], r'logits_processors\[0\].name = "" is not a logits processor'),
        ([_call("add"), {"name": "x"}], r"logits_processors\[1\].name"),
        ([_call("add", 1.0, math.nan)], r"logits_processors\[0\].arguments holds nan; allowed: finite"),
        ([_call("add", 1e39)], r"logits_processors\[0\].arguments holds 1e\+39"),
        ([_call("add", *[0.0] * 2049), _call("add", *[0.0] * 2048)], r"has 4097 arguments in all; .* at most 4096"),
        ([_call("add")] * 17, r"logits_processors has 17 entries; allowed: at most 16"),
    ],
)
def test_what_there_is_not_is_refused(client: Client, calls: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as refusal:
        client.start_request(MODEL, ids=[1, 2], logits_processors=calls)  # type: ignore[typeddict-item]
    assert refusal.value.reason == "INVALID_FIELD"


def test_the_effective_config_tells_what_was_chosen(client: Client) -> None:
    calls = [_call("add", 17, 0.1), _call("no-repeat")]
    handle, _ = client.start_request(MODEL, **GREEDY, logits_processors=calls)
    config = client.get_request(handle).request.effective_config
    client.release_request(handle)
    assert config["logits_processors"] == [calls[0], {"name": "no-repeat"}]
