"""Section 4: what a generation config asks is done, or refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest
from headrace import Client, InvalidRequestError
from headrace.allspark import ASGenerationConfigBuilder
from headrace.lmdeploy import GenerationConfig
from headrace.types import FinishReason
from support.contract.answers import LONG, ids_of
from support.contract.places import MAX_LENGTH, MODEL


def _ids(client: Client, **fields: object) -> list[int]:
    handle, queue = client.start_request(MODEL, **{"ids": [1, 2, 3], **fields})  # type: ignore[arg-type]
    ids = ids_of(queue)
    client.release_request(handle)
    return ids


@pytest.mark.sim
def test_greedy_in_all_its_spellings(client: Client) -> None:
    greedy = _ids(client, max_new_tokens=30, **LONG)
    for fields in ({"temperature": 0.0}, {"top_k": 1}, {"temperature": 1e-5}, {"top_p": 1e-6}, {"min_p": 1.0}):
        assert _ids(client, max_new_tokens=30, ignore_eos=True, seed=3, **fields) == greedy


@pytest.mark.sim
@pytest.mark.parametrize(
    ("length", "fields"), [(3, {}), (40, {}), (33, {"prompt_logprobs": 0}), (37, {"use_prefix_cache": False})], ids=str
)
def test_greedy_sequences_of_a_request_are_the_same(client: Client, length: int, fields: dict[str, Any]) -> None:
    """Up to the last bit of their scores, with others beside, the first time and when the prompt is cached."""
    asked = {"n": 5, "max_new_tokens": 12, "ignore_eos": True, "logprobs": True, "top_logprobs": 2} | LONG
    for _ in range(2):
        other, _ = client.start_request(MODEL, ids=range(1, 70), ignore_eos=True, max_new_tokens=20)
        handle, queue = client.start_request(MODEL, ids=range(200, 200 + length), **asked, **fields)
        late, _ = client.start_request(MODEL, ids=range(70, 140), ignore_eos=True, max_new_tokens=2)
        answers = [[(one.ids_from_generate, one.log_probs_list) for one in choice] for choice in queue.choices]
        rows = [[row for _, rows in answer for row in rows] for answer in answers]
        assert len(rows[0]) == 12
        assert rows == rows[:1] * 5
        for each in (other, handle, late):
            client.release_request(each)


@pytest.mark.ranks
@pytest.mark.sim
def test_a_seed_gives_the_same_tokens_alone_and_in_company(client: Client) -> None:
    fields = {"max_new_tokens": 40, "ignore_eos": True, "seed": 42, "temperature": 0.8}
    alone = _ids(client, **fields)
    others = [client.start_request(MODEL, ids=[7, 8, i], ignore_eos=True, max_new_tokens=60)[0] for i in range(1, 6)]
    assert _ids(client, **fields) == alone
    for handle in others:
        client.release_request(handle)
    assert _ids(client, **{**fields, "seed": 43}) != alone


def test_explicit_zeros_reach_the_effective_config(client: Client) -> None:
    zeros = {"temperature": 0.0, "seed": 0, "top_k": 0, "min_length": 0, "presence_penalty": 0.0, "min_p": 0.0}
    handle, queue = client.start_request(MODEL, ids=[1], max_new_tokens=1, logprobs=False, **zeros)
    effective = queue.request.effective_config
    assert {name: effective[name] for name in zeros} == zeros
    assert effective["logprobs"] is False
    client.release_request(handle)


@pytest.mark.sim
def test_eos_ends_the_request_unless_it_is_told_not_to(client: Client) -> None:
    free = _ids(client, max_new_tokens=20, **LONG)
    eos = free[4]
    stop = free.index(eos) + 1
    assert _ids(client, max_new_tokens=20, do_sample=False, eos_token_id=[eos]) == free[:stop]
    for fields in ({"ignore_eos": True}, {"early_stopping": False}):
        assert _ids(client, max_new_tokens=20, do_sample=False, eos_token_id=[eos], **fields) == free


@pytest.mark.parametrize("second", [False, True])
def test_bc020_every_id_of_an_eos_list_ends_the_request(client: Client, second: bool) -> None:
    free = _ids(client, max_new_tokens=20, **LONG)
    eos = [free[3], 380]
    assert _ids(client, max_new_tokens=20, do_sample=False, eos_token_id=eos[::-1] if second else eos)[-1] == free[3]


@pytest.mark.parametrize("field", ["min_new_tokens", "min_length"])
@pytest.mark.sim
def test_eos_is_masked_before_the_minimum(client: Client, field: str) -> None:
    free = _ids(client, max_new_tokens=20, **LONG)
    ids = _ids(
        client, max_new_tokens=20, do_sample=False, eos_token_id=[free[0]], **{field: 10 + 3 * (field == "min_length")}
    )
    assert len(ids) >= 10
    assert free[0] not in ids[:10]


def test_contradictory_eos_switches_are_an_error(client: Client) -> None:
    with pytest.raises(InvalidRequestError, match="early_stopping"):
        client.start_request(MODEL, ids=[1], early_stopping=True, ignore_eos=True)


@pytest.mark.sim
def test_nothing_left_to_draw_ends_the_request(client: Client) -> None:
    handle, queue = client.start_request(MODEL, ids=[1], eos_token_id=list(range(384)), min_new_tokens=2)
    assert queue.Get() is None
    assert queue.finish_reason is FinishReason.NO_TOKEN_LEFT
    client.release_request(handle)


def test_bc032_lengths_count_as_they_say(client: Client) -> None:
    prompt = list(range(10, 20))
    assert len(_ids(client, ids=prompt, max_length=12, **LONG)) == 2
    assert len(_ids(client, ids=prompt, max_length=30, max_new_tokens=4, **LONG)) == 4
    assert len(_ids(client, ids=prompt, max_length=13, max_new_tokens=4, **LONG)) == 3
    assert len(_ids(client, ids=prompt, **LONG)) == MAX_LENGTH - 10
    for max_length in (10, 5):
        with pytest.raises(InvalidRequestError, match="10 tokens"):
            client.start_request(MODEL, ids=prompt, max_length=max_length)


@pytest.mark.sim
def test_bc028_a_prompt_of_exactly_the_limit_yields_one_token(client: Client) -> None:
    prompt = [3 + i % 300 for i in range(MAX_LENGTH - 1)]
    assert len(_ids(client, ids=prompt, **LONG)) == 1
    for length in (MAX_LENGTH, MAX_LENGTH + 1):
        with pytest.raises(InvalidRequestError, match=str(length)) as refusal:
            client.start_request(MODEL, ids=[1] * length)
        assert refusal.value.reason == "PROMPT_TOO_LONG"


def test_bc031_too_long_names_prompt_request_and_limit(client: Client) -> None:
    with pytest.raises(InvalidRequestError, match=r"5000.*256.*the prompt has 3 tokens"):
        client.start_request(MODEL, ids=[1, 2, 3], max_length=5000)


@pytest.mark.parametrize("own", [{}, {"max_length": 256}])
def test_more_new_tokens_than_fit_are_a_warning(client: Client, own: dict[str, int]) -> None:
    """Alike for the model's limit and the request's own: a chat with a fixed number of them grows to its end."""
    handle, _ = client.start_request(MODEL, ids=[1] * 254, max_new_tokens=5000, ignore_eos=True, **own)
    client.sync_request(handle)
    info = client.get_request(handle)
    assert info.sequences[0].generated_length == 2
    (warning,) = info.request.warnings
    assert (warning.field, "leaves 2 new tokens" in warning.message) == ("config.max_new_tokens", True)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1.0), ("temperature", math.inf), ("temperature", math.nan),
        ("top_p", -0.1), ("top_p", 1.5), ("top_p", 0.0), ("top_p", math.nan),
        ("min_p", 1.1), ("min_p", -0.1), ("repetition_penalty", 0.0), ("repetition_penalty", -1.0),
        ("repetition_penalty", math.nan), ("presence_penalty", 2.5), ("frequency_penalty", -2.5),
        ("max_length", 0), ("max_length", 257), ("max_new_tokens", 0), ("n", 0), ("n", 65), ("top_logprobs", 21),
        ("eos_token_id", [384]), ("lease", {"running": 3600.5}), ("lease", {"ended": -1}),
    ],
)  # fmt: skip
def test_bc042_values_out_of_range_are_refused_by_name(client: Client, field: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=field) as refusal:
        client.start_request(MODEL, ids=[1, 2], **{field: value})  # type: ignore[arg-type]
    assert refusal.value.reason == "INVALID_FIELD"


@pytest.mark.ranks
@pytest.mark.sim
def test_logprobs_are_those_of_the_chosen_tokens(client: Client) -> None:
    handle, queue = client.start_request(
        MODEL, ids=[1, 2, 3], max_new_tokens=10, logprobs=True, seed=5, temperature=2.0
    )
    elements = list(queue)
    values = [v for e in elements for v in e.token_logprobs_list]
    assert len(values) == queue.GeneratedLength()
    assert all(math.isfinite(value) and value <= 0 for value in values)
    client.release_request(handle)


def test_suspicious_fields_are_warnings(client: Client) -> None:
    handle, queue = client.start_request(MODEL, ids=[1], max_new_tokens=1, do_sample=False, temperature=0.7)
    assert [warning.field for warning in queue.request.warnings] == ["config.temperature"]
    client.release_request(handle)


def test_configs_under_other_names_mean_the_same(client: Client) -> None:
    greedy = _ids(client, max_new_tokens=12, **LONG)
    dashinfer = ASGenerationConfigBuilder().top_k(1).early_stopping(False).update({"max_length": 3 + 12})
    assert _ids(client, **dashinfer.build()) == greedy
    lmdeploy = GenerationConfig(max_new_tokens=12, ignore_eos=True)
    assert _ids(client, **lmdeploy.build()) == greedy
    schema = {"type": "json_object", "json_schema": '{"enum": [12, 34]}'}
    guided = ASGenerationConfigBuilder(seed=1).max_new_tokens(20).response_format(schema).build()
    assert "".join(client.generate(MODEL, ids=[1, 2], **guided)) in ("12", "34")
