"""Embeddings by OpenAI's own client."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from headrace import Client
from support.servers.http_servers import HttpGateway

TEXTS = ["A wheel turns.", "Water flows."]


@pytest.mark.parametrize("form", ["float", "base64"])
def test_embeddings_are_those_of_grpc(client: openai.OpenAI, grpc: Client, form: Any) -> None:
    answer = client.embeddings.create(model="tiny", input=TEXTS, encoding_format=form)
    expected = grpc.embed("tiny", TEXTS)
    if form == "float":
        assert [one.embedding for one in answer.data] == [one.values for one in expected]
    assert answer.usage.prompt_tokens == sum(one.prompt_token_count for one in expected)
    assert [one.index for one in answer.data] == [0, 1]


def test_the_client_s_default_form_is_read(client: openai.OpenAI, grpc: Client) -> None:
    """It asks for base64, and gives its caller numbers."""
    answer = client.embeddings.create(model="tiny", input=[5, 6, 7], extra_body={"pooling": "mean", "normalize": False})
    (expected,) = grpc.embed("tiny", [[5, 6, 7]], pooling="MEAN", normalize=False)
    assert answer.data[0].embedding == pytest.approx(expected.values)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"input": []}, "input"),
        ({"input": ["a"] * 65}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [[3], 4]}, "input[1]"),
        ({"input": [100000]}, "input"),
        ({"dimensions": 8}, "dimensions"),
        ({"extra_body": {"pooling": "first"}}, "pooling"),
    ],
)
def test_a_wrong_field_is_named(client: openai.OpenAI, fields: Any, field: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(**{"model": "tiny", "input": "a", **fields})
    assert (caught.value.param or "").startswith(field)


def test_an_unknown_model_is_told(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="nothing", input="a")


def test_metrics_count_what_grpc_s_statistics_do(gateway: HttpGateway, client: openai.OpenAI, grpc: Client) -> None:
    client.completions.create(model="tiny", prompt="The river", max_tokens=9, extra_body={"ignore_eos": True})
    (stat,) = grpc.engine_stats("tiny")
    status, headers, body = gateway.ask("GET", "/metrics")
    assert (status, headers["content-type"].partition(";")[0]) == (200, "text/plain")
    lines = dict(line.rsplit(" ", 1) for line in body.decode().splitlines() if not line.startswith("#"))
    labels = '{engine="e1",model="tiny"}'
    assert float(lines[f"headrace_generated_tokens_total{labels}"]) == stat.generated_tokens >= 9
    assert float(lines[f"headrace_kv_tokens{labels}"]) == stat.tokens_total
    assert float(lines[f"headrace_requests_running{labels}"]) == 0
    assert lines['headrace_engine_reachable{engine="e1"}'] == "1.0"
