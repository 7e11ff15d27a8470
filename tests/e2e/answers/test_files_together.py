"""What the files of a model say is taken together: ends, and which ids there are."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from headrace import Client, InvalidRequestError
from headrace._transport.transport import open_transport
from support.models.json_files import read_json, write_json
from support.models.tiny_models import make_tiny_llama
from support.models.tiny_tokenizer import ENDOFTEXT, IM_END, VOCAB_SIZE

PADDED = VOCAB_SIZE + 37
MAX_LENGTH = 128
BACKENDS = ("cpu", "torch")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("together") / "tiny", max_position_embeddings=MAX_LENGTH)


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with more rows than its tokenizer has ids, of which each has a larger logit than all others."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path_factory.mktemp("padded") / "tiny"
    make_tiny_llama(folder, max_position_embeddings=MAX_LENGTH, vocab_size=PADDED)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"][VOCAB_SIZE:] = 40 * torch.sign(tensors["lm_head.weight"][:37])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module", params=BACKENDS)
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    transport = open_transport("inprocess:", {"backend": request.param})
    with Client(transport) as opened:
        yield opened
    transport.close()


@pytest.fixture
def run(client: Client) -> Iterator[Callable[[Path], list[str]]]:
    """Runs a model under the name "m", and gives the warnings of its install."""

    def start(folder: Path) -> list[str]:
        client.install_model("m", path=str(folder), dtype="FLOAT32", max_batch=4, num_threads=1)
        client.start_model("m")
        return [warning.message for warning in client.get_model("m")[0].effective.warnings]

    yield start
    client.stop_model("m")
    client.release_model("m")


def copied(folder: Path, tmp_path: Path, changes: dict[str, dict[str, Any]]) -> Path:
    """A copy of a model's folder with some values of its files changed; None: absent."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    for name, values in changes.items():
        content = {**read_json(copy / name), **values}
        write_json(copy / name, {key: value for key, value in content.items() if value is not None})
    return copy


def ids_of(client: Client, **fields: Any) -> list[int]:
    """All ids of a request that is started with ids."""
    handle, queue = client.start_request("m", **{"ids": [5, 6, 7], **fields})
    ids: list[int] = []
    while (element := queue.Get()) is not None:
        ids += element.ids_from_generate
    client.release_request(handle)
    return ids


GENERATION, CONFIG, TOKENIZER = "generation_config.json", "config.json", "tokenizer_config.json"


@pytest.mark.parametrize(
    ("changes", "ends", "reported"),
    [
        (
            {GENERATION: {"eos_token_id": 0}, CONFIG: {"eos_token_id": 0}},
            {0, 2},
            "ends: 0 by generation_config",
        ),
        ({GENERATION: {"eos_token_id": 0}, CONFIG: {"eos_token_id": 2}}, {0, 2}, "2 by config.json"),
        ({GENERATION: {"eos_token_id": None}, CONFIG: {"eos_token_id": None}}, {2}, None),
        ({GENERATION: {"eos_token_id": [2, 0]}, CONFIG: {"eos_token_id": 2}}, {0, 2}, None),
    ],
)
def test_a3_any_end_that_a_file_names_ends(
    client: Client, run: Any, llama: Path, tmp_path: Path, changes: Any, ends: set[int], reported: str | None
) -> None:
    warnings = run(copied(llama, tmp_path, changes))
    assert ([text for text in warnings if "ends" in text] == []) is (reported is None)
    assert reported is None or any(reported in text for text in warnings)
    for end in ends:
        handle, queue = client.start_request("m", ids=[5], allowed_token_ids=[end], max_new_tokens=3)
        assert set(queue.request.effective_config["eos_token_id"]) == ends
        element = queue.Get()
        assert element is not None
        assert element.ids_from_generate == [end]
        client.release_request(handle)


def test_a3_without_any_end_there_is_a_warning(run: Any, llama: Path, tmp_path: Path) -> None:
    absent = {"eos_token_id": None}
    warnings = run(copied(llama, tmp_path, {GENERATION: absent, CONFIG: absent, TOKENIZER: {"eos_token": None}}))
    assert any("end by their length only" in text for text in warnings)


def test_a4_rows_beyond_the_tokenizer_are_not_sampled_or_listed(client: Client, run: Any, padded: Path) -> None:
    run(padded)
    for fields in ({"temperature": 0.0}, {"temperature": 2.0, "top_k": 0}, {"top_p": 0.9, "repetition_penalty": 1.2}):
        ids = ids_of(client, max_new_tokens=60, ignore_eos=True, seed=1, **fields)
        assert len(ids) == 60
        assert max(ids) < VOCAB_SIZE
    handle, queue = client.start_request(
        "m", ids=list(range(3, 40)), logprobs=True, top_logprobs=20, prompt_logprobs=20, max_new_tokens=30
    )
    listed = []
    while (element := queue.Get()) is not None:
        listed += [token_id for row in element.log_probs_list for token_id, _ in row]
    prompt = client.get_request(handle, prompt_logprobs_from=0).prompt_logprobs
    listed += [token_id for row in prompt.log_probs_list for token_id, _ in row]
    assert len(listed) >= 20 * 36
    assert max(listed) < VOCAB_SIZE
    client.release_request(handle)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ids", [5, VOCAB_SIZE]),
        ("logit_bias", {VOCAB_SIZE: 1.0}),
        ("allowed_token_ids", [VOCAB_SIZE]),
        ("stop_token_ids", [VOCAB_SIZE]),
        ("stop_words_ids", [[VOCAB_SIZE]]),
        ("bad_words_ids", [[VOCAB_SIZE]]),
        ("eos_token_id", [VOCAB_SIZE]),
    ],
)
def test_a4_rows_beyond_the_tokenizer_are_refused(
    client: Client, run: Any, padded: Path, field: str, value: Any
) -> None:
    run(padded)
    refusal = f"{VOCAB_SIZE}, which is not a valid token id; allowed: 0 to {VOCAB_SIZE - 1}"
    with pytest.raises(InvalidRequestError, match=refusal):
        client.start_request("m", **{"ids": [5], field: value})


def test_a4_the_other_rows_compute_what_they_did(client: Client, run: Any, padded: Path) -> None:
    """As transformers does with the same logits, of which those beyond the tokenizer are left out."""
    from transformers import AutoModelForCausalLM

    run(padded)
    ids = ids_of(client, max_new_tokens=20, temperature=0.0, ignore_eos=True)
    model = AutoModelForCausalLM.from_pretrained(padded, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([[5, 6, 7, *ids]])).logits[0, 2:-1, :VOCAB_SIZE]
    assert logits.argmax(1).tolist() == ids


@pytest.fixture
def with_pad(llama: Path, tmp_path: Path) -> Path:
    """A model whose tokenizer has a token more than the model has rows."""
    from tokenizers import AddedToken, Tokenizer

    folder = copied(llama, tmp_path, {TOKENIZER: {"pad_token": "<pad>"}})
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken("<pad>", special=True, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_an_added_token_beyond_the_rows_is_told_and_refused(client: Client, run: Any, with_pad: Path) -> None:
    warnings = run(with_pad)
    assert any("'<pad>' (384)" in text for text in warnings)
    assert len(ids_of(client, ids=None, text="Hello", max_new_tokens=4, ignore_eos=True)) == 4
    with pytest.raises(InvalidRequestError, match="holds '<pad>', which is token 384 of the tokenizer alone"):
        client.start_request("m", text="Hello <pad>")
    with pytest.raises(InvalidRequestError, match="384, which is not a valid token id"):
        client.start_request("m", ids=[384])
    answer = ids_of(client, max_new_tokens=12, response_format={"type": "choice", "choices": ["abc"]})
    assert answer[-1] in (ENDOFTEXT, IM_END)


def test_a4_holes_of_a_tokenizer_are_not_drawn_and_refused(
    client: Client, run: Any, llama: Path, tmp_path: Path
) -> None:
    """Ids that no token has, between others."""
    folder = copied(llama, tmp_path, {})
    raw = read_json(folder / "tokenizer.json")
    gone = [piece for piece, number in raw["model"]["vocab"].items() if 350 <= number < 380]
    for piece in gone:
        del raw["model"]["vocab"][piece]
    raw["model"]["merges"] = [pair for pair in raw["model"]["merges"] if not _uses(pair, gone)]
    write_json(folder / "tokenizer.json", raw)
    run(folder)
    ids = ids_of(client, max_new_tokens=100, temperature=5.0, top_k=0, ignore_eos=True)
    assert not any(350 <= token_id < 380 for token_id in ids)
    with pytest.raises(InvalidRequestError, match="360, which the model's tokenizer does not define"):
        client.start_request("m", ids=[360])


def _uses(pair: Any, pieces: list[str]) -> bool:
    left, right = pair if isinstance(pair, list) else pair.split(" ")
    return left in pieces or right in pieces or left + right in pieces
