"""The real model: SmolLM2-135M-Instruct answers as transformers does on the same dequantised weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from headrace import Client
from support.models.text_accuracy import smollm2

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
NEW_TOKENS = 24


@pytest.fixture(scope="module")
def gguf() -> Path:
    return smollm2()


@pytest.fixture(scope="module")
def client(gguf: Path, level: None) -> Iterator[Client]:
    with Client("inprocess:") as client:
        client.install_model("smol", path=str(gguf), max_length=512, max_batch=4)
        client.start_model("smol")
        yield client


def test_the_answer_equals_the_references(client: Client, gguf: Path) -> None:
    _, queue = client.start_request("smol", messages=MESSAGES, max_new_tokens=NEW_TOKENS, do_sample=False)
    elements = list(queue)
    ids = [token for part in elements for token in part.ids_from_generate]
    text = "".join(part.text for part in elements)
    assert "Paris" in text
    prompt = client.tokenize("smol", messages=MESSAGES).ids
    assert ids == _reference(gguf, prompt)[: len(ids)]


def _reference(gguf: Path, prompt: list[int]) -> list[int]:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    ids = torch.tensor([prompt])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=2
    )
    return output[0, len(prompt) :].tolist()


def test_the_template_is_the_models_own(client: Client) -> None:
    rendered = client.tokenize("smol", messages=MESSAGES).rendered_text
    assert rendered.startswith("<|im_start|>system\n")
    assert rendered.endswith("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n")


def test_a_chat_ends_at_the_models_end_of_turn(client: Client) -> None:
    _, queue = client.start_request("smol", messages=MESSAGES, max_new_tokens=100, do_sample=False)
    ids = [token for part in queue for token in part.ids_from_generate]
    assert queue.finish_reason == "EOS"
    assert ids[-1] == 2
