"""Greedy answers with each penalty are those of transformers, on both backends, whatever happens on the way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from headrace import Client
from headrace._transport.transport import open_transport
from support.backends.same_tokens import ROUNDING, same_tokens
from support.models.tiny_models import make_tiny_llama

NEW_TOKENS = 40
MAX_LENGTH = 128

FIELDS: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.3},
    "repetition below one": {"repetition_penalty": 0.8},
    "n-gram 1": {"no_repeat_ngram_size": 1},
    "n-gram 3": {"repetition_penalty": 0.6, "no_repeat_ngram_size": 3},
    "bad words": {"bad_words_ids": [[93], [5], [177, 223], [240, 240], [40, 41]]},
    "min length": {"eos_token_id": [16, 50, 51, 52, 93, 240, 374], "min_length": 24},
    "min new tokens": {"eos_token_id": list(range(30, 90)), "min_new_tokens": 12},
    "all": {
        "eos_token_id": list(range(200, 240)),
        "min_new_tokens": 8,
        "bad_words_ids": [[93], [177, 223]],
        "no_repeat_ngram_size": 2,
        "repetition_penalty": 1.2,
    },
}
"""The last field of each is the one that must change some answer."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("penalties") / "tiny", max_position_embeddings=MAX_LENGTH)


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Of mixed length, with ids that repeat."""
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(40, 60, (length,), generator=generator).tolist() for length in (1, 5, 17, 33, 64)]


@pytest.fixture(scope="module", params=["cpu", "torch"])
def client(request: pytest.FixtureRequest, folder: Path, level: None) -> Iterator[Client]:
    """A model in this process, whose pool is too small for all requests at once."""
    transport = open_transport("inprocess:", {"backend": request.param})
    with Client(transport) as client:
        client.install_model("m", path=str(folder), dtype="FLOAT32", max_batch=8, num_blocks=16, num_threads=1)
        client.start_model("m")
        yield client
    transport.close()


def _reference(model: Any, prompt: list[int], fields: dict[str, Any]) -> tuple[list[int], torch.Tensor]:
    """Tokens, and the scores [tokens, vocab] that they are the largest of."""
    ids = torch.tensor([prompt])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0,
        return_dict_in_generate=True, output_scores=True, **{"eos_token_id": None, **fields},
    )  # fmt: skip
    return output.sequences[0, len(prompt) :].tolist(), torch.cat(output.scores)


@pytest.mark.parametrize("name", FIELDS)
def test_greedy_answers_are_those_of_transformers(
    client: Client, model: Any, prompts: list[list[int]], steps_go: threading.Event, name: str
) -> None:
    """All prompts in one batch, in a pool that holds four of five answers: one is preempted, and goes on as before."""
    fields = FIELDS[name]
    expected = [_reference(model, prompt, fields) for prompt in prompts]
    sent = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "ignore_eos": "eos_token_id" not in fields, **fields}
    started = [client.start_request("m", ids=prompt, **sent) for prompt in prompts]
    steps_go.set()
    answers = [[token for one in queue for token in one.ids_from_generate] for _, queue in started]
    same_tokens([ids for ids, _ in expected], answers, [scores for _, scores in expected], rounding=ROUNDING["float32"])
    if all(len(ids) == NEW_TOKENS for ids in answers):
        assert sum(queue.RequestStatInfo()["preemptions"] or 0 for _, queue in started) > 0
    for handle, _ in started:
        client.release_request(handle)


@pytest.mark.parametrize("name", FIELDS)
def test_the_field_changes_some_answer(model: Any, prompts: list[list[int]], name: str) -> None:
    """Else the comparison above would hold without it."""
    fields = FIELDS[name]
    others = dict(list(fields.items())[:-1])
    assert any(_reference(model, prompt, fields)[0] != _reference(model, prompt, others)[0] for prompt in prompts)
