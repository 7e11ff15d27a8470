"""Configs cross the wire whole, and what is unset stays unset."""

from __future__ import annotations

import json

import pytest
from google.protobuf import json_format
from headrace_engine.config import ComputeDtype, Lease, RuntimeConfig
from headrace_engine.errors import InvalidArgument
from headrace_engine.generation_config import GenerationConfig, InterruptPolicy
from headrace_engine.request_parts import ResponseFormat, ResponseFormatKind
from headrace_engine.service.convert.config import GENERATION_CONFIG, RUNTIME_CONFIG
from headrace_proto.v1.generation_pb2 import GenerationConfig as WireGeneration
from headrace_proto.v1.generation_pb2 import GrammarSyntax
from headrace_proto.v1.runtime_pb2 import RuntimeConfig as WireRuntime
from unit.service.filled import filled, unset_fields


@pytest.mark.parametrize(("codec", "kind"), [(RUNTIME_CONFIG, WireRuntime), (GENERATION_CONFIG, WireGeneration)])
def test_every_field_survives_wire_to_domain_to_wire(codec, kind):
    for message in filled(kind):
        assert not list(unset_fields(message))
        assert codec.to_wire(codec.to_domain(message)) == message


@pytest.mark.parametrize(
    ("codec", "kind", "domain"),
    [(RUNTIME_CONFIG, WireRuntime, RuntimeConfig()), (GENERATION_CONFIG, WireGeneration, GenerationConfig())],
)
def test_nothing_set_is_nothing_set(codec, kind, domain):
    assert codec.to_domain(kind()) == domain
    assert codec.to_wire(domain) == kind()


ZEROS = {
    "temperature": 0.0,
    "seed": 0,
    "top_k": 0,
    "top_p": 0.0,
    "presence_penalty": 0.0,
    "min_length": 0,
    "early_stopping": False,
    "skip_special_tokens": False,
    "lora_name": "",
    "cache_salt": "",
}


@pytest.mark.parametrize("name", ZEROS)
def test_bc195_a_zero_sent_on_purpose_is_not_an_unset_field(name):
    message = WireGeneration(**{name: ZEROS[name]})
    config = GENERATION_CONFIG.to_domain(message)
    assert getattr(config, name) == ZEROS[name]
    assert getattr(config, name) is not None
    assert GENERATION_CONFIG.to_wire(config).HasField(name)
    assert getattr(GENERATION_CONFIG.to_domain(WireGeneration()), name) is None


def test_bc195_a_zero_in_json_is_not_an_unset_field():
    """Gateway and grpcurl send JSON."""
    message = json_format.Parse(json.dumps(ZEROS), WireGeneration())
    assert {name: getattr(GENERATION_CONFIG.to_domain(message), name) for name in ZEROS} == ZEROS


def test_bc183_json_takes_enum_names_seeds_and_seconds():
    text = '{"seed": %s, "interrupt_policy": "INTERRUPT_POLICY_RETURN", "deadline": "2.5s", "stop_words": ["\\u00e9"]}'
    for seed in ("18446744073709551615", '"18446744073709551615"'):
        config = GENERATION_CONFIG.to_domain(json_format.Parse(text % seed, WireGeneration()))
        assert config.seed == 2**64 - 1
        assert config.interrupt_policy is InterruptPolicy.RETURN
        assert config.deadline == 2.5
        assert config.stop_words == ("é",)


def test_an_unspecified_enum_counts_as_unset():
    assert RUNTIME_CONFIG.to_domain(WireRuntime(dtype="COMPUTE_DTYPE_UNSPECIFIED")).dtype is None
    assert RUNTIME_CONFIG.to_domain(WireRuntime(dtype="COMPUTE_DTYPE_AUTO")).dtype is ComputeDtype.AUTO


def test_durations_keep_their_value_and_presence():
    lease = Lease(running=0.0, ended=None)
    message = GENERATION_CONFIG.to_wire(GenerationConfig(lease=lease, deadline=-0.25))
    assert (message.deadline.seconds, message.deadline.nanos) == (0, -250_000_000)
    assert message.lease.HasField("running")
    assert not message.lease.HasField("ended")
    assert GENERATION_CONFIG.to_domain(message) == GenerationConfig(lease=lease, deadline=-0.25)


@pytest.mark.parametrize("seconds", [0.1, 1.1, 3600.000000001, 123456.789])
def test_a_duration_comes_back_as_it_was_sent(seconds):
    message = RUNTIME_CONFIG.to_wire(RuntimeConfig(drain_limit=seconds))
    again = RUNTIME_CONFIG.to_wire(RUNTIME_CONFIG.to_domain(message))
    assert again == message


def test_lists_of_ids_keep_empty_ones():
    config = GenerationConfig(stop_words_ids=((1, 2), ()))
    assert GENERATION_CONFIG.to_domain(GENERATION_CONFIG.to_wire(config)) == config


@pytest.mark.parametrize(("syntax", "ebnf"), [("UNSPECIFIED", False), ("LARK", False), ("EBNF", True)])
def test_a_grammar_is_lark_unless_it_says_otherwise(syntax, ebnf):
    message = WireGeneration()
    message.response_format.grammar.text = "start: x"
    message.response_format.grammar.syntax = GrammarSyntax.Value(f"GRAMMAR_SYNTAX_{syntax}")
    expected = ResponseFormat(ResponseFormatKind.GRAMMAR, "start: x", ebnf=ebnf)
    assert GENERATION_CONFIG.to_domain(message).response_format == expected


def test_a_response_format_without_a_form_is_refused_by_name():
    message = WireGeneration()
    message.response_format.SetInParent()
    with pytest.raises(InvalidArgument, match="json_object, json_schema, regex, choice, grammar") as caught:
        GENERATION_CONFIG.to_domain(message)
    assert caught.value.violations[0].field == "config.response_format"


def test_embeddings_without_a_dtype_are_refused_by_name():
    message = WireGeneration()
    message.mm_info.items.add().embedding.shape.extend([1, 2])
    with pytest.raises(InvalidArgument) as caught:
        GENERATION_CONFIG.to_domain(message)
    assert caught.value.violations[0].field == "config.mm_info.items[0].embedding.dtype"
