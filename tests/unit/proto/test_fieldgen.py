"""What is made from the wire contract is what lies in the repository, and its words and types fit each other."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

import pytest
from fieldgen.__main__ import FILES, ROOT, made
from fieldgen.contract import Contract
from fieldgen.rules import Rules
from headrace.fields import GenerationFields, InstallFields
from headrace_engine.engine.config.field_checks import Field
from headrace_engine.engine.config.fields import GENERATION, RUNTIME
from headrace_proto.v1 import field_options_pb2, generation_pb2

each_message = pytest.mark.parametrize("name", ["GenerationConfig", "RuntimeConfig"])


@pytest.fixture(scope="module")
def contract() -> Contract:
    return Contract()


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return made()


@pytest.mark.parametrize("path", FILES)
def test_what_is_made_is_committed(files: dict[str, str], path: str) -> None:
    """After a change of the contract, `make fields`."""
    assert (ROOT / path).read_text() == files[path]


@each_message
def test_every_field_says_what_it_does(contract: Contract, name: str) -> None:
    for field in contract.message(name).fields:
        comment = contract.comment(field)
        assert comment.endswith("."), field.name
        assert not re.search(r"\bDefault\b|; in [\[(]", comment), f"{field.name}: the rules say that"


@each_message
def test_a_field_has_a_default_or_says_what_unset_means(contract: Contract, name: str) -> None:
    for field in contract.message(name).fields:
        rules = contract.rules(field)
        assert not (rules.HasField("default") and rules.unset), field.name
        assert not (rules.HasField("at_least") and rules.HasField("above")), field.name


@pytest.mark.parametrize(("manual", "table"), [(GenerationFields, GENERATION), (InstallFields, RUNTIME)])
def test_client_and_engine_know_the_same_fields(manual: type, table: Mapping[str, Field]) -> None:
    taken = {"model_name", "model_path"} if manual is InstallFields else set()
    assert set(manual.__annotations__) | taken == set(table)


@pytest.mark.parametrize(
    ("manual", "name", "text"),
    [
        (GenerationFields, "top_p", "off. In (0, 1]. Default 1.0."),
        (GenerationFields, "n", "1 to 64. Default 1."),
        (GenerationFields, "do_sample", "Default True."),
        (GenerationFields, "cache_salt", 'At most 1024 bytes. Default "".'),
        (GenerationFields, "interrupt_policy", 'One of "RESUME", "RETURN". Default "RESUME".'),
        (GenerationFields, "mm_info", "Not supported so far."),
        (GenerationFields, "deadline", "Above 0. Default: none."),
        (InstallFields, "format", 'Default "AUTO".'),
        (
            InstallFields,
            "weight_quant_group_size",
            "Default: 128 for INT4, 0 for INT8. Only 0, 16, 32, 64, 128 so far.",
        ),
        (InstallFields, "drain_limit", "Seconds that stop_model lets requests run; 0 = end them at once. At least 0."),
    ],
)
def test_the_client_s_manual_says_values_and_default(manual: type, name: str, text: str) -> None:
    entry = re.search(rf"^    {name}: (.*?)(?=^    \w+: |\Z)", inspect.getdoc(manual) or "", re.MULTILINE | re.DOTALL)
    assert entry
    assert text in " ".join(entry[1].split())


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("top_k", (0, 2**32 - 1, False, "")),
        ("max_length", (1, None, False, "at least 1")),
        ("top_p", (0, 1, True, "(0, 1]")),
        ("priority", (-(2**31), 2**31 - 1, False, "")),
        ("n", (1, 64, False, "1 to 64")),
        ("length_penalty", (None, None, False, "")),
        ("eos_token_id", (None, None, False, "at most 4096 entries")),
    ],
)
def test_limits_are_those_of_the_rules_else_of_the_type(contract: Contract, name: str, limits: tuple[Any, ...]) -> None:
    rules = Rules.of(contract, contract.message("GenerationConfig").fields_by_name[name])
    assert (rules.low, rules.high, rules.above_low, rules.range) == limits


def test_whoever_reads_descriptors_finds_the_rules() -> None:
    options = generation_pb2.GenerationConfig.DESCRIPTOR.fields_by_name["min_p"].GetOptions()
    rules = options.Extensions[field_options_pb2.rules]
    assert (rules.at_least, rules.at_most, rules.default) == (0, 1, "0.0")
