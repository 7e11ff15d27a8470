"""Every field of the bodies that OpenAI's and Anthropic's packages send is known here: computed, without effect, or
refused by name; and docs/http.md says which.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from headrace_gateway.http.anthropic import request as anthropic
from headrace_gateway.http.bodies import struct_of, without_effect
from headrace_gateway.http.failures import Failure
from headrace_gateway.http.openai import chat_request, completions, embeddings
from headrace_gateway.http.openai.responses import request as responses
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import input_token_count_params, response_create_params

PAGE = Path(__file__).parents[4] / "docs" / "http.md"
HEADERS = {"user_profile_id", "workspace_id"}
"""Parameters that Anthropic's package sends as headers."""


@dataclass(frozen=True)
class Api:
    """An API, by what its package sends.

    Attributes:
        sent: typed dictionaries of its bodies.
        section: title of the part of the page about it.
    """

    sent: tuple[Any, ...]
    struct: type[msgspec.Struct]
    harmless: dict[str, Any]
    refused: dict[str, str]
    section: str

    @property
    def fields(self) -> set[str]:
        return {name for kind in self.sent for name in kind.__annotations__} - HEADERS


APIS = {
    "chats": Api(
        (chat_create_params.CompletionCreateParamsBase, chat_create_params.CompletionCreateParamsStreaming),
        chat_request.ChatRequest,
        chat_request.HARMLESS,
        chat_request.REFUSED,
        "## Fields",
    ),
    "completions": Api(
        (completion_create_params.CompletionCreateParamsBase, completion_create_params.CompletionCreateParamsStreaming),
        completions.CompletionRequest,
        completions.HARMLESS,
        completions.REFUSED,
        "## Fields",
    ),
    "embeddings": Api(
        (embedding_create_params.EmbeddingCreateParams,),
        embeddings.EmbeddingRequest,
        embeddings.HARMLESS,
        embeddings.REFUSED,
        "## Fields",
    ),
    "responses": Api(
        (response_create_params.ResponseCreateParamsBase, response_create_params.ResponseCreateParamsStreaming),
        responses.ResponseRequest,
        responses.HARMLESS,
        responses.REFUSED,
        "### Responses",
    ),
    "tokens of responses": Api(
        (input_token_count_params.InputTokenCountParams,),
        responses.CountRequest,
        responses.HARMLESS,
        responses.REFUSED,
        "### Responses",
    ),
    "messages": Api(
        (message_create_params.MessageCreateParamsBase, message_create_params.MessageCreateParamsStreaming),
        anthropic.MessageRequest,
        anthropic.HARMLESS,
        anthropic.REFUSED,
        "### Messages of Anthropic",
    ),
    "tokens of messages": Api(
        (message_count_tokens_params.MessageCountTokensParams,),
        anthropic.CountRequest,
        anthropic.HARMLESS,
        anthropic.REFUSED,
        "### Messages of Anthropic",
    ),
}


def documented(title: str) -> set[str]:
    """The names that stand in code in a section of the page, and in that of all APIs."""
    page = PAGE.read_text(encoding="utf-8")
    parts = [re.split(r"^##+ ", page.partition(f"{one}\n")[2], flags=re.MULTILINE)[0] for one in ("## Fields", title)]
    return {name for part in parts for name in re.findall(r"`([a-z_]+)[`:.]", part)}


@pytest.mark.parametrize("api", APIS.values(), ids=APIS)
def test_every_field_of_the_packages_is_known_and_documented(api: Api) -> None:
    known = {*api.struct.__struct_encode_fields__, *api.harmless, *api.refused}
    assert api.fields - known == set()
    assert api.fields - documented(api.section) == set()


@pytest.mark.parametrize("api", APIS.values(), ids=APIS)
def test_every_field_is_computed_or_refused_and_not_both(api: Api) -> None:
    computed = set(api.struct.__struct_encode_fields__)
    assert computed & set(api.harmless) == set()
    assert computed & set(api.refused) == set()
    for name in api.refused:
        with pytest.raises(Failure) as caught:
            without_effect({name: {"x": 1}}, api.harmless, api.refused)
        assert (caught.value.field, caught.value.reason) == (name, "unsupported_parameter")


@pytest.mark.parametrize("api", APIS.values(), ids=APIS)
def test_a_field_of_tomorrow_is_refused_by_name(api: Api) -> None:
    with pytest.raises(Failure) as caught:
        struct_of(api.struct, without_effect({"tomorrow": 1}, api.harmless, api.refused))
    assert (caught.value.field, caught.value.reason) == ("tomorrow", "unknown_parameter")
