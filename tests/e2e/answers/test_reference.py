"""The whole path against transformers in float32: the same greedy tokens, whatever batch, chunks and pool."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from headrace import Client
from support.models.tiny_models import make_tiny_llama, make_tiny_qwen2

NEW_TOKENS = 24
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip

MODELS: dict[str, Callable[[Path], Path]] = {
    "llama-tied-gqa1": lambda path: make_tiny_llama(path, tie_word_embeddings=True, num_key_value_heads=4),
    "llama-untied-gqa3": lambda path: make_tiny_llama(
        path, tie_word_embeddings=False, hidden_size=96, num_attention_heads=6, num_key_value_heads=2, head_dim=24
    ),
    "llama-gqa8-llama3": lambda path: make_tiny_llama(
        path, num_attention_heads=8, num_key_value_heads=1, head_dim=8, rope_parameters=LLAMA3
    ),
    "qwen2-tied-gqa2": lambda path: make_tiny_qwen2(path, tie_word_embeddings=True, num_key_value_heads=2),
    "qwen2-untied-gqa8": lambda path: make_tiny_qwen2(
        path, tie_word_embeddings=False, num_attention_heads=8, num_key_value_heads=1
    ),
}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Client("inprocess:") as client:
        yield client


@pytest.fixture(scope="module", params=list(MODELS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MODELS[request.param](tmp_path_factory.mktemp("reference") / request.param)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """16 prompts of mixed length; some share their first 40 ids."""
    generator = torch.Generator().manual_seed(11)
    lengths = [1, 2, 5, 15, 16, 17, 31, 33, 48, 64, 70, 90, 41, 57, 80, 44]
    drawn = [torch.randint(3, 384, (length,), generator=generator).tolist() for length in lengths]
    shared = drawn[11][:40]
    return [shared + prompt[40:] if index >= 12 else prompt for index, prompt in enumerate(drawn)]


@pytest.fixture(scope="module")
def expected(folder: Path, prompts: list[list[int]]) -> list[list[int]]:
    """What transformers generates, one prompt at a time."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False,
            eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        answers.append(output[0, len(prompt) :].tolist())
    return answers


def _serve(client: Client, name: str, folder: Path, **fields: Any) -> str:
    client.install_model(name, path=str(folder), max_length=128, num_threads=1, **fields)
    client.start_model(name)
    return name


@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_what_is_told_of_prompts_and_tokens(backend: str, folder: Path, prompts: list[list[int]]) -> None:
    """Log-probabilities of the prompt, input embeddings and last hidden states, in chunks and mixed batches."""
    with Client("inprocess:", backend=backend) as client:
        name = _serve(client, "told", folder, max_batch=4, max_prefill_tokens=23)
        queues = [
            client.start_request(
                name, ids=prompt, max_new_tokens=5, do_sample=False, ignore_eos=True,
                **({"prompt_logprobs": 2, "enable_tensors_from_model_inference": True} if asks else {}),
            )[1]
            for prompt, asks in zip(prompts[4:11], [True, False, True, True, False, True, True], strict=True)
        ]  # fmt: skip
        for prompt, queue in zip(prompts[4:11], queues, strict=True):
            rows: list[tuple[int, dict[str, Any]]] = []
            for one in queue:
                rows += zip(one.ids_from_generate, one.tensors_from_model_inference, strict=False)
            if rows:
                piece = client.get_request(queue.handle, prompt_logprobs_from=0).prompt_logprobs
                _compare_reported(folder, prompt, [token for token, _ in rows], piece, [row for _, row in rows])


def _compare_reported(folder: Path, prompt: list[int], ids: list[int], piece: Any, rows: list[dict[str, Any]]) -> None:
    """`hidden_states[-1]` has gone through the final norm: the head makes the logits of it."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        found = model(torch.tensor([prompt + ids[:-1]]), output_hidden_states=True)
        torch.testing.assert_close(model.lm_head(found.hidden_states[-1]), found.logits)
    logprobs = found.logits[0].double().log_softmax(1)
    expected = [logprobs[place, token].item() for place, token in enumerate(prompt[1:])]
    assert (piece.position, piece.ids) == (1, prompt[1:])
    assert piece.token_logprobs_list == pytest.approx(expected, abs=1e-3)
    best = logprobs[: len(prompt) - 1].topk(2).values.tolist()
    assert [[value for _, value in row] for row in piece.log_probs_list] == [
        pytest.approx(row, abs=1e-3) for row in best
    ]
    for name, layer in (("inputs_embedding", 0), ("hidden_states", -1)):
        mine = torch.tensor([row[name].tolist() for row in rows])
        torch.testing.assert_close(mine, found.hidden_states[layer][0, len(prompt) - 1 :], rtol=0, atol=1e-3)


def _end(client: Client, name: str) -> None:
    stat = client.engine_stats(name)[0]
    assert (stat.running, stat.waiting) == (0, 0)
    client.stop_model(name)
    client.release_model(name)


def _generate(client: Client, name: str, prompts: list[list[int]]) -> list[list[int]]:
    started = [
        client.start_request(name, ids=prompt, max_new_tokens=NEW_TOKENS, do_sample=False, ignore_eos=True)
        for prompt in prompts
    ]
    answers = [[token for elements in queue for token in elements.ids_from_generate] for _, queue in started]
    for handle, _ in started:
        client.release_request(handle)
    return answers


def test_alone(client: Client, folder: Path, prompts: list[list[int]], expected: list[list[int]]) -> None:
    name = _serve(client, "alone", folder, enable_prefix_cache=False, max_batch=1)
    assert _generate(client, name, prompts) == expected
    _end(client, name)


@pytest.mark.parametrize("budget", [16, 23, 2048])
def test_in_mixed_batches_with_chunked_prefill(
    client: Client, folder: Path, prompts: list[list[int]], expected: list[list[int]], budget: int
) -> None:
    name = _serve(client, "mixed", folder, max_batch=16, max_prefill_tokens=budget)
    assert _generate(client, name, prompts) == expected
    _end(client, name)


def test_with_forced_preemption(
    client: Client, folder: Path, prompts: list[list[int]], expected: list[list[int]], steps_go: threading.Event
) -> None:
    """All requests are there before the first step ends."""
    name = _serve(client, "scarce", folder, max_batch=16, num_blocks=16, enable_prefix_cache=False)
    started = [
        client.start_request(name, ids=prompt, max_new_tokens=NEW_TOKENS, do_sample=False, ignore_eos=True)
        for prompt in prompts
    ]
    steps_go.set()
    assert [[t for e in queue for t in e.ids_from_generate] for _, queue in started] == expected
    assert sum(queue.RequestStatInfo()["preemptions"] or 0 for _, queue in started) > 0
    for handle, _ in started:
        client.release_request(handle)
    _end(client, name)


def test_with_prefix_hits(client: Client, folder: Path, prompts: list[list[int]], expected: list[list[int]]) -> None:
    name = _serve(client, "cached", folder, max_batch=16)
    assert _generate(client, name, prompts) == expected
    assert _generate(client, name, prompts) == expected
    stat = client.engine_stats(name)[0]
    assert stat.prefix_cache_hit_tokens >= sum((len(prompt) - 1) // 16 * 16 for prompt in prompts)
    _end(client, name)
