"""Adapters over HTTP: by the names of models, as of other servers, and by `lora_name`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from headrace import Client
from support.clocks.waiting import LIMIT, wait_until
from support.models.tiny_adapters import make_tiny_adapter
from support.servers.http_servers import HttpGateway
from support.servers.processes import Server

FIXED: dict[str, Any] = {"max_tokens": 12, "seed": 5}
CHAT = [{"role": "user", "content": "Hello!"}]


@pytest.fixture(scope="module")
def files(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {name: make_tiny_adapter(folder / name, tiny, seed=seed) for seed, name in enumerate(("sql", "poet"), 1)}


@pytest.fixture(scope="module")
def adapted(shared_engine: Server, shared_gateway: HttpGateway, tiny: Path, files: dict[str, Path]) -> Iterator[str]:
    """A model with an adapter, which the gateway has found."""
    with Client(shared_engine.address) as client:
        client.install_model(
            "adapted",
            path=str(tiny),
            adapters=[{"name": "sql", "path": str(files["sql"])}],
            lora_max_num=2,
            max_batch=4,
            num_threads=1,
        )
        client.start_model("adapted")
        with openai.OpenAI(base_url=shared_gateway.url, api_key="none", max_retries=0, timeout=LIMIT) as caller:

            def found() -> bool:
                try:
                    return bool(complete(caller, "sql"))
                except openai.NotFoundError:
                    return False

            wait_until(found, "the gateway does not find the adapter")
        yield "adapted"
        client.stop_model("adapted")
        client.release_model("adapted")


def over_grpc(grpc: Client, **fields: Any) -> str:
    handle, queue = grpc.start_request("adapted", "Once upon", max_new_tokens=12, seed=5, **fields)
    text = "".join(elements.text for elements in queue)
    grpc.release_request(handle)
    return text


def complete(client: openai.OpenAI, model: str, **fields: Any) -> openai.types.Completion:
    return client.completions.create(model=model, prompt="Once upon", **FIXED, extra_body=fields)


def test_an_adapter_s_name_is_that_of_a_model(client: openai.OpenAI, grpc: Client, adapted: str) -> None:
    expected = over_grpc(grpc, lora_name="sql")
    assert expected != over_grpc(grpc)
    named, given = complete(client, "sql"), complete(client, adapted, lora_name="sql")
    assert (named.model, named.choices[0].text) == ("sql", expected)
    assert (given.model, given.choices[0].text) == (adapted, expected)
    assert complete(client, adapted).choices[0].text == over_grpc(grpc)


def test_embeddings_take_an_adapter_s_name(client: openai.OpenAI, grpc: Client, adapted: str) -> None:
    """Numbers are those of gRPC within rounding to float32, in which the client asks for them."""

    def vector(model: str, **fields: Any) -> list[float]:
        answer = client.embeddings.create(model=model, input="Once upon", extra_body=fields)
        return list(answer.data[0].embedding)

    expected = grpc.embed("adapted", "Once upon", lora_name="sql")[0].values
    assert vector("sql") == vector(adapted, lora_name="sql") == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert vector(adapted) != vector("sql")


def test_every_api_takes_an_adapter_s_name(client: openai.OpenAI, gateway: HttpGateway, adapted: str) -> None:
    """With the answer of a chat, and log-probabilities whose tokens have texts."""
    chat = client.chat.completions.create(model="sql", messages=CHAT, logprobs=True, top_logprobs=1, **FIXED)
    plain = client.chat.completions.create(model=adapted, messages=CHAT, **FIXED)
    text = chat.choices[0].message.content
    assert text != plain.choices[0].message.content
    assert chat.choices[0].logprobs is not None
    assert len(chat.choices[0].logprobs.content or ()) == 12
    for store in (False, True):
        response = client.responses.create(
            model="sql", input="Hello!", max_output_tokens=12, store=store, extra_body={"seed": 5}
        )
        assert (response.model, response.output_text) == ("sql", text)
    with anthropic.Anthropic(base_url=f"http://{gateway.http}", api_key="none", max_retries=0, timeout=LIMIT) as other:
        message = other.messages.create(model="sql", messages=CHAT, max_tokens=12, extra_body={"seed": 5})
        assert (message.model, message.content[0].text) == ("sql", text)
        assert other.messages.count_tokens(model="sql", messages=CHAT).input_tokens == chat.usage.prompt_tokens


def test_adapters_are_listed_as_they_come_and_go(
    client: openai.OpenAI, grpc: Client, adapted: str, files: dict[str, Path]
) -> None:
    def listed() -> dict[str, Any]:
        return {model.id: getattr(model, "parent", None) for model in client.models.list()}

    assert listed().items() >= {"adapted": None, "tiny": None, "sql": "adapted"}.items()
    with pytest.raises(openai.NotFoundError):
        complete(client, "poet")
    grpc.load_adapter(adapted, "poet", str(files["poet"]))
    assert listed()["poet"] == client.models.retrieve("poet").parent == "adapted"
    expected = over_grpc(grpc, lora_name="poet")

    def found() -> bool:
        try:
            return complete(client, "poet").choices[0].text == expected
        except openai.NotFoundError:
            return False

    wait_until(found, "the new adapter is not found")
    grpc.unload_adapter(adapted, "poet")
    assert "poet" not in listed()
    with pytest.raises(openai.NotFoundError, match="poet"):
        complete(client, "poet")


def test_an_adapter_of_two_models_needs_one(
    client: openai.OpenAI, grpc: Client, adapted: str, tiny: Path, files: dict[str, Path]
) -> None:
    grpc.install_model(
        "second", path=str(tiny), adapters=[{"name": "both", "path": str(files["poet"])}], max_batch=2, num_threads=1
    )
    grpc.start_model("second")
    grpc.load_adapter(adapted, "both", str(files["poet"]))
    try:

        def refused() -> str:
            try:
                complete(client, "both")
            except (openai.NotFoundError, openai.BadRequestError) as error:
                return str(error)
            return ""

        wait_until(lambda: "is an adapter of several models (adapted, second)" in refused(), "it is not refused")
        assert complete(client, "second", lora_name="both").choices[0].text
    finally:
        grpc.stop_model("second")
        grpc.release_model("second")
        grpc.unload_adapter(adapted, "both")
