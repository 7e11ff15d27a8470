"""SMG's router in front of the engine, as its users start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest
from support.clocks.waiting import LIMIT, wait_until
from support.servers.ports import free_port

from .conftest import MODEL, Served

_TIED = str(Path(__file__).parents[3] / "deploy" / "tied.py")
MESSAGES: Any = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def router(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """OpenAI's client of the router."""
    port, log = free_port(), tmp_path_factory.mktemp("smg") / "log"
    flags = ["--worker-urls", f"grpc://{served.server.address}", "--host", "127.0.0.1", "--port", str(port)]
    flags += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
    command = [sys.executable, "-I", "-S", _TIED, str(os.getpid()), "-m", "smg.cli", "launch", *flags]
    with log.open("w") as output, httpx.Client(timeout=LIMIT) as http:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        base = f"http://127.0.0.1:{port}"

        def registered() -> bool:
            assert process.poll() is None, log.read_text()
            with suppress(httpx.HTTPError, ValueError, KeyError):
                return bool(http.get(f"{base}/v1/models").json()["data"])
            return False

        try:
            wait_until(registered, "the router lists no model")
            with openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0, timeout=LIMIT) as client:
                yield client
        finally:
            process.terminate()
            process.wait(LIMIT)


def test_the_worker_is_listed(router: openai.OpenAI) -> None:
    assert [model.id for model in router.models.list()] == [MODEL]


def test_a_chat_is_answered_as_by_the_engine_itself(router: openai.OpenAI, served: Served) -> None:
    answer = router.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=8, temperature=0, logprobs=True)
    _, queue = served.client.start_request(MODEL, messages=MESSAGES, max_new_tokens=8, do_sample=False)
    text = "".join(element.text for element in queue)
    assert answer.choices[0].message.content == text
    assert answer.usage.completion_tokens == queue.GeneratedLength()
    assert len(answer.choices[0].logprobs.content) == queue.GeneratedLength()


def test_a_streamed_chat_is_that_chat(router: openai.OpenAI) -> None:
    fields: Any = {"model": MODEL, "messages": MESSAGES, "max_tokens": 8, "temperature": 0}
    whole = router.chat.completions.create(**fields).choices[0]
    chunks = [chunk.choices[0] for chunk in router.chat.completions.create(**fields, stream=True) if chunk.choices]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == whole.message.content
    assert chunks[-1].finish_reason == whole.finish_reason


def test_a_schema_is_kept(router: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    format_: Any = {"type": "json_schema", "json_schema": {"name": "one", "schema": schema, "strict": True}}
    answer = router.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=100, seed=5, response_format=format_
    )
    assert json.loads(answer.choices[0].message.content)["a"] in (1, 2)


def test_a_caller_who_leaves_ends_the_request(router: openai.OpenAI, served: Served) -> None:
    fields: Any = {"model": MODEL, "messages": MESSAGES, "max_tokens": 200, "extra_body": {"ignore_eos": True}}
    served.gate.allow(3)
    stream = router.chat.completions.create(**fields, stream=True)
    next(iter(stream))
    assert served.requests == 1
    stream.close()
    for _ in range(50):  # The router finds out when it passes a token on.
        if not served.requests:
            return
        served.gate.let(1)
    served.is_idle()
