"""Engine and gateway in containers, used from outside through the published port."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import openai
import pytest
from headrace import Client
from headrace.errors import AuthError
from headrace.types import ModelState
from support.clocks.waiting import LIMIT, wait_until
from support.deployment.containers import Stack

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
LONG = 1500

pytestmark = [pytest.mark.compose, pytest.mark.timeout(600)]


def _healthy(stack: Stack, service: str) -> bool:
    return stack.docker("inspect", service, "--format", "{{.State.Health.Status}}").strip() == "healthy"


def test_an_answer_streams_through_the_published_port(client: Client) -> None:
    assert "Paris" in "".join(client.generate("smol", messages=QUESTION, max_new_tokens=24, do_sample=False))
    handle, queue = client.start_request("smol", messages=QUESTION, max_new_tokens=LONG, ignore_eos=True)
    assert queue.Get() is not None
    assert queue.finish_reason is None  # Hundreds of steps are to come.
    client.release_request(handle)


def test_openai_s_client_chats_with_the_key(stack: Stack, client: Client) -> None:
    with openai.OpenAI(base_url=f"http://{stack.http}/v1", api_key=stack.key, max_retries=0) as caller:
        answer = caller.chat.completions.create(model="smol", messages=QUESTION, max_tokens=24, temperature=0)
    assert "Paris" in str(answer.choices[0].message.content)


def test_grpcurl_calls_with_the_key(stack: Stack, client: Client) -> None:
    grpcurl = str(Path(sys.executable).parent / "grpcurl")
    config = {"do_sample": False, "max_new_tokens": 24}
    question = {"model_name": "smol", "chat": {"messages": QUESTION}, "config": config}
    command = [grpcurl, "-plaintext", "-H", f"authorization: Bearer {stack.key}", "-d", json.dumps(question)]
    command += [stack.address, "headrace.v1.RequestService/StartRequest"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    handle = json.loads(done.stdout)["request"]["handle"]
    assert "Paris" in "".join(elements.text for elements in client.open_queue(handle))


def test_nobody_calls_without_a_key(stack: Stack, client: Client) -> None:
    with Client(stack.address) as stranger, pytest.raises(AuthError):
        stranger.list_models()
    with (
        openai.OpenAI(base_url=f"http://{stack.http}/v1", api_key="none", max_retries=0) as caller,
        pytest.raises(openai.AuthenticationError),
    ):
        caller.models.list()


def test_a_restart_makes_no_new_keys(stack: Stack, client: Client) -> None:
    before = stack.key
    stack.compose("up", "--detach", "--no-build")
    assert stack.key == before


def test_the_gateway_alone_is_published_and_on_loopback_alone(stack: Stack) -> None:
    published = {f"7070/tcp -> {stack.address}", f"7080/tcp -> {stack.http}"}
    assert set(stack.docker("port", "gateway").splitlines()) == published
    assert stack.docker("port", "engine") == ""


def test_a_stream_outlives_its_gateway(stack: Stack, client: Client) -> None:
    """Killed in the middle and started again: every token comes, none twice, in the order of the engine's log."""
    handle, queue = client.start_request(
        "smol", messages=QUESTION, max_new_tokens=LONG, ignore_eos=True, do_sample=False
    )
    first = queue.Get()
    assert first is not None
    ids, text = list(first.ids_from_generate), first.text
    stack.docker("kill", "gateway")
    while (waiting := queue.GetNoWait()) is not None:
        ids, text = ids + list(waiting.ids_from_generate), text + waiting.text
    assert len(ids) < LONG, "the answer ended before the gateway was killed"
    stack.docker("start", "gateway")
    for elements in queue:
        ids, text = ids + list(elements.ids_from_generate), text + elements.text
    log = list(client.open_queue(handle))
    assert len(ids) == LONG
    assert ids == [token for elements in log for token in elements.ids_from_generate]
    assert text == "".join(elements.text for elements in log)


def test_bc203_engine_returns_to_its_models_and_gateway_to_it(stack: Stack, client: Client) -> None:
    """The model is kept in the state volume, and calls through the same gateway work again by themselves."""
    client.install_model("second", path="/models/SmolLM2-135M-Instruct.Q4_1.gguf", max_length=128, max_batch=1)
    before = client.server_info().engines[0].instance_id
    stack.docker("restart", "engine")

    def back() -> bool:
        engine = client.server_info().engines[0]
        names = {model.model_name: model.state for model in client.list_models()}
        return engine.instance_id != before and names == {"smol": ModelState.RUNNING, "second": ModelState.INITIAL}

    wait_until(back, "the engine does not come back to its models", 180)
    assert "".join(client.generate("smol", messages=QUESTION, max_new_tokens=4))
    client.release_model("second")
    wait_until(lambda: _healthy(stack, "engine") and _healthy(stack, "gateway"), "health does not follow", 60)
