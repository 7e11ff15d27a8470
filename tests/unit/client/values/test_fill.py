"""Keywords into messages: what is set, what is refused, and with what words."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from headrace import InvalidRequestError
from headrace._base import foreign_names
from headrace._values.unfill import to_fields
from headrace.fields import ChatFields, GenerationFields, InstallFields
from headrace_proto.v1 import generation_pb2, runtime_pb2
from hypothesis import given
from hypothesis import strategies as st
from unit.client.values.filled import config, runtime


def test_bc195_a_zero_sent_on_purpose_is_present() -> None:
    names = ["temperature", "top_p", "presence_penalty", "seed", "top_k", "min_length", "priority"]
    zeros = dict.fromkeys(names, 0)
    message = config(**zeros, do_sample=False, lora_name="")
    for name in [*names, "do_sample", "lora_name"]:
        assert message.HasField(name), name
    assert not config().HasField("temperature")
    assert config(temperature=0) != config()


def test_bc195_none_is_a_field_left_out() -> None:
    assert config(temperature=None, stop_words=None, lease=None) == config()


def test_an_empty_list_is_an_unset_one() -> None:
    assert config(stop_words=[], eos_token_id=()) == config()


def test_lists_of_ids_and_lists_of_lists() -> None:
    message = config(stop_words_ids=[[1, 2], (3,), range(2)], stop_token_ids=(4, 5), stop_words=("a", "b"))
    assert [list(one.ids) for one in message.stop_words_ids] == [[1, 2], [3], [0, 1]]
    assert list(message.stop_token_ids) == [4, 5]
    assert list(message.stop_words) == ["a", "b"]


@pytest.mark.parametrize("seconds", [0.3, 1e-6, 1e-9, 2.7, 59.999999999])
def test_an_error_shows_a_duration_as_it_was_given(seconds: float) -> None:
    assert to_fields(config(deadline=seconds)) == {"deadline": seconds}


@pytest.mark.parametrize("value", [1.5, timedelta(seconds=1, milliseconds=500)])
def test_durations_are_seconds_or_timedeltas(value: object) -> None:
    assert config(deadline=value).deadline.ToMilliseconds() == 1500
    assert config(lease={"running": value, "ended": 0}).lease.running.ToMilliseconds() == 1500


@pytest.mark.parametrize("name", ["INT8", "int8", "Int8"])
def test_enums_are_given_by_name(name: str) -> None:
    assert runtime(kv_cache_mode=name).kv_cache_mode == runtime_pb2.KV_CACHE_MODE_INT8


def test_an_unknown_enum_name_is_answered_with_all_names() -> None:
    with pytest.raises(InvalidRequestError, match="kv_cache_mode = 'INT7': must be one of DEFAULT, INT8, UINT4"):
        runtime(kv_cache_mode="INT7")
    with pytest.raises(InvalidRequestError):
        runtime(kv_cache_mode="UNSPECIFIED")
    with pytest.raises(InvalidRequestError):
        runtime(kv_cache_mode=2)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("top_k", -1, "a non-negative whole number"),
        ("top_k", 2**32, "at most 4294967295"),
        ("seed", 2**64, "at most 18446744073709551615"),
        ("priority", 2**31, "at most 2147483647"),
        ("priority", -(2**31) - 1, "at least -2147483648"),
        ("top_k", 1.0, "a whole number"),
        ("top_k", True, "a whole number"),
        ("top_k", "5", "a whole number"),
        ("temperature", "hot", "a number"),
        ("temperature", True, "a number"),
        ("temperature", 10**400, "a number that a double can hold"),
        ("do_sample", 1, "True or False"),
        ("lora_name", b"a", "a string"),
        ("lora_name", {"a": 1}, "a string"),
        ("lora_name", "\ud800", "text without lone surrogates"),
        ("stop_words", "stop", "a list"),
        ("stop_words", 3, "a list"),
        ("deadline", "soon", "a number of seconds, or a timedelta"),
        ("deadline", True, "a number of seconds, or a timedelta"),
        ("deadline", float("inf"), "at most 315576000000 seconds"),
        ("logit_bias", [1], "a mapping"),
        ("lease", 5, "a mapping with running, ended"),
        ("stop_words_ids", [5], "a list"),
    ],
)
def test_wrong_values_are_named_with_what_is_allowed(name: str, value: object, allowed: str) -> None:
    with pytest.raises(InvalidRequestError, match=allowed) as caught:
        config(**{name: value})
    assert caught.value.message.startswith(name)
    assert caught.value.details["field_violations"][0]["field"].startswith(name)


def test_a_wrong_entry_is_named_by_its_index() -> None:
    with pytest.raises(InvalidRequestError, match=r"eos_token_id\[1\] = -2: must be a non-negative whole number"):
        config(eos_token_id=[1, -2])
    with pytest.raises(InvalidRequestError, match=r"stop_words_ids\[1\]\[0\] = 'a'"):
        config(stop_words_ids=[[1], ["a"]])
    with pytest.raises(InvalidRequestError, match=r"logit_bias\['x'\] = 'x': must be a whole number"):
        config(logit_bias={"x": -100})
    with pytest.raises(InvalidRequestError, match=r"lease\.running = -"):
        config(lease={"running": -1e30})


def test_a_wrong_name_is_a_type_error_with_what_comes_close() -> None:
    with pytest.raises(TypeError, match='no field "temprature"; did you mean temperature'):
        config(temprature=1)
    with pytest.raises(InvalidRequestError, match=r"lease: unknown key 'runing'; .*; did you mean running"):
        config(lease={"runing": 1})
    with pytest.raises(TypeError, match=r'no field "zzz"$'):
        config(zzz=None)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("max_tokens", "max_new_tokens"),
        ("stop", "stop_words"),
        ("num_return_sequences", "n"),
        ("regex", "response_format"),
    ],
)
def test_a_name_from_elsewhere_is_answered_with_ours(theirs: str, ours: str) -> None:
    with pytest.raises(TypeError, match=rf"; did you mean {ours}\?$"):
        config(**{theirs: 1})


def test_names_from_elsewhere_stand_for_fields_that_there_are() -> None:
    keywords = {"ids", "messages", "text", "retry", "api_key"}
    fields = {*GenerationFields.__annotations__, *ChatFields.__annotations__, *InstallFields.__annotations__}
    assert set(foreign_names.OURS) <= keywords | fields
    assert not {name for names in foreign_names.OURS.values() for name in names} & (keywords | fields)


def test_long_lists_of_ids_go_in_whole() -> None:
    ids = list(range(200_000))
    assert list(config(allowed_token_ids=ids).allowed_token_ids) == ids


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "temperature": st.floats(allow_nan=False),
            "do_sample": st.booleans(),
            "seed": st.integers(0, 2**64 - 1),
            "stop_words": st.lists(st.text(st.characters(codec="utf-8")), min_size=1),
            "stop_words_ids": st.lists(st.lists(st.integers(0, 2**32 - 1)), min_size=1),
            "logit_bias": st.dictionaries(st.integers(0, 2**32 - 1), st.floats(allow_nan=False), min_size=1),
            "deadline": st.integers(0, 10**6).map(lambda ms: ms / 1000),
            "interrupt_policy": st.sampled_from(["RESUME", "RETURN"]),
            "lease": st.fixed_dictionaries({}, optional={"running": st.integers(0, 100), "ended": st.integers(0, 100)}),
            "response_format": st.sampled_from([{"json_object": {}}, {"regex": "a"}, {"choice": ["a"]}]),
        },
    )
)
def test_what_was_filled_in_is_read_back(fields: dict[str, Any]) -> None:
    """An effective config can be sent again."""
    message = config(**fields)
    again = config(**to_fields(message))
    assert again == message
    assert to_fields(message) == pytest.approx(fields) if not fields else to_fields(message).keys() == fields.keys()


def test_the_typed_keywords_are_the_fields_of_the_wire() -> None:
    """A new field of the contract must come with its keyword and its documentation."""
    generation = set(GenerationFields.__annotations__)
    assert generation == set(generation_pb2.GenerationConfig.DESCRIPTOR.fields_by_name)
    install = set(InstallFields.__annotations__)
    assert install | {"model_name", "model_path"} == set(runtime_pb2.RuntimeConfig.DESCRIPTOR.fields_by_name)
    assert not generation & set(ChatFields.__annotations__)
    for kind in (GenerationFields, ChatFields, InstallFields):
        assert all(f"        {name}: " in str(kind.__doc__) for name in kind.__annotations__), kind


def test_the_spellings_of_other_systems_are_taken() -> None:
    """JSON has ids as digits where they are keys (OpenAI); one id may stand without a list (transformers)."""
    assert config(logit_bias={"5": 1.0, 7: -1}) == config(logit_bias={5: 1.0, 7: -1})
    assert config(eos_token_id=5) == config(eos_token_id=[5])
    assert config(stop_token_ids=0) == config(stop_token_ids=[0])


@pytest.mark.parametrize(
    "fields",
    [{"logit_bias": {key: 1.0}} for key in ("x", "-1", "", "5.0", "９", "1" * 5000, True)]
    + [{"logit_bias": {"5": 1.0, 5: 2.0}}, {"eos_token_id": True}, {"eos_token_id": "5"}, {"eos_token_id": -1}]
    + [{"stop_words_ids": [5, 7]}],
)
def test_what_is_no_id_is_still_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        config(**fields)
