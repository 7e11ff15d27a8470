"""Adapters on the cpu and torch backends against PEFT in float32: several in one batch, and rows without any."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from headrace_engine.errors import BadModel
from headrace_engine.models.spec import DecoderSpec
from support.backends.cpu_sequences import CpuLanes, cpu_model
from support.backends.torch_sequences import Lane, Lanes, load, random_ids
from support.models.tiny_adapters import adapter_plan, make_tiny_adapter, peft_logits
from support.models.tiny_models import make_tiny_family, make_tiny_gguf, make_tiny_llama

COUNT = 8
PROMPTS = [random_ids(length, seed=length) for length in (37, 5, 21, 40, 16)]
ROOM = {"lora_max_num": 3, "lora_max_rank": 9}
LAYOUTS = ["phi3", "glm4", "gemma3", "qwen3", "granite4", "olmo2"]
"""Families whose files join, reorder or rename matrices, or whose heads are padded."""


@contextmanager
def opened(kind: str, path: Path) -> Iterator[tuple[Lanes, Any]]:
    """Return sequences of a backend, and its adapters."""
    if kind == "cpu":
        with cpu_model(path, **ROOM) as model:
            yield CpuLanes(model), model.adapters
    else:
        loaded = load(path, **ROOM)
        yield Lanes(loaded), loaded.adapters


@pytest.fixture(scope="module")
def adapters(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two adapters of different ranks for the tiny model, the second of some matrices and scaled by the rank's root."""
    folder = tmp_path_factory.mktemp("adapters")
    targets = ["q_proj", "v_proj", "down_proj"]
    return [
        make_tiny_adapter(folder / "a", tiny_llama, seed=1),
        make_tiny_adapter(folder / "b", tiny_llama, seed=2, r=9, use_rslora=True, target_modules=targets),
    ]


@pytest.fixture(params=["cpu", "torch"])
def kind(request: pytest.FixtureRequest) -> str:
    """Each backend."""
    return str(request.param)


def spec_of(path: Path) -> DecoderSpec:
    """Return what a model computes."""
    return load(path).spec


def agree(lane: Lane, prompt: int, model: Path, adapter: Path | None) -> None:
    """Assert that the logits of a lane are those of PEFT, and its ids the most likely ones."""
    expected = peft_logits(model, adapter, lane.ids[:-1])[prompt - 1 :]
    torch.testing.assert_close(torch.stack(lane.scores), expected, rtol=1e-4, atol=1e-4)
    assert lane.ids[prompt:] == [int(scores.argmax()) for scores in expected]


def test_rows_of_several_adapters_compute_as_alone(kind: str, tiny_llama: Path, adapters: list[Path]) -> None:
    """Two adapters, the same one twice, and none share every step, in chunks, and each is what PEFT says."""
    chosen = (1, 2, 0, 1, 2)
    with opened(kind, tiny_llama) as (lanes, table):
        for number, path in enumerate(adapters, 1):
            table.read(adapter_plan(number, path, spec_of(tiny_llama)))()
        together, alone = ([], [])
        for found in (together, alone):
            for prompt, number in zip(PROMPTS, chosen, strict=True):
                found.append(lanes.add(prompt, new_tokens=COUNT))
                found[-1].adapter = number
        lanes.greedy(together, COUNT, chunk=7, stagger=2)
        for lane in alone:
            lanes.greedy([lane], COUNT)
    for lane, single, prompt, number in zip(together, alone, PROMPTS, chosen, strict=True):
        agree(lane, len(prompt), tiny_llama, adapters[number - 1] if number else None)
        assert torch.equal(torch.stack(lane.scores), torch.stack(single.scores))
    assert len({tuple(lane.ids[-COUNT:]) for lane in together}) == len(together)


def test_an_adapter_takes_the_place_of_another(kind: str, tiny_llama: Path, adapters: list[Path]) -> None:
    """Nothing stays of what the one before changed, nor of its larger rank."""
    spec = spec_of(tiny_llama)
    with opened(kind, tiny_llama) as (lanes, table):
        for path in (adapters[1], adapters[0], adapters[1]):
            table.read(adapter_plan(2, path, spec))()
            lane = lanes.add(PROMPTS[0], new_tokens=COUNT)
            lane.adapter = 2
            lanes.greedy([lane], COUNT)
            agree(lane, len(PROMPTS[0]), tiny_llama, path)


@pytest.mark.parametrize("name", LAYOUTS)
def test_adapters_of_every_layout(kind: str, name: str, tmp_path: Path) -> None:
    """Joined, renamed and reordered matrices, and patterns of ranks and scales."""
    model = make_tiny_family(tmp_path / "model", name)
    patterns = {"rank_pattern": {"layers.0.self_attn.o_proj": 2}, "alpha_pattern": {"o_proj": 3}}
    adapter = make_tiny_adapter(tmp_path / "adapter", model, target_modules="all-linear", **patterns)
    with opened(kind, model) as (lanes, table):
        table.read(adapter_plan(1, adapter, spec_of(model)))()
        changed, plain = (lanes.add(PROMPTS[0], new_tokens=COUNT) for _ in range(2))
        changed.adapter = 1
        lanes.greedy([changed, plain], COUNT)
    agree(changed, len(PROMPTS[0]), model, adapter)
    agree(plain, len(PROMPTS[0]), model, None)


def test_adapters_of_latent_attention_take_room_for_mlps_alone(kind: str, tmp_path: Path) -> None:
    model, targets = make_tiny_family(tmp_path / "model", "minicpm3"), ("gate", "up", "down")
    adapter = make_tiny_adapter(tmp_path / "adapter", model, target_modules=[f"{name}_proj" for name in targets])
    spec = spec_of(model)
    with opened(kind, model) as (lanes, table):
        sides = 3 * (spec.hidden_size + spec.intermediate_size)
        assert table.nbytes == 4 * ROOM["lora_max_num"] * ROOM["lora_max_rank"] * spec.num_layers * sides
        table.read(adapter_plan(1, adapter, spec))()
        lane = lanes.add(PROMPTS[0], new_tokens=COUNT)
        lane.adapter = 1
        lanes.greedy([lane], COUNT)
    agree(lane, len(PROMPTS[0]), model, adapter)


def test_an_adapter_of_peft_for_a_gguf_model(kind: str, tmp_path: Path) -> None:
    """The file's queries and keys lie in another order than PEFT's."""
    source = make_tiny_llama(tmp_path / "model")
    adapter = make_tiny_adapter(tmp_path / "adapter", source)
    model = make_tiny_gguf(tmp_path / "model.gguf", source)
    with opened(kind, model) as (lanes, table):
        table.read(adapter_plan(1, adapter, spec_of(model)))()
        lane = lanes.add(PROMPTS[0], new_tokens=COUNT)
        lane.adapter = 1
        lanes.greedy([lane], COUNT)
    agree(lane, len(PROMPTS[0]), source, adapter)


def test_an_adapter_that_has_changed_is_refused(kind: str, tiny_llama: Path, tmp_path: Path) -> None:
    adapter = make_tiny_adapter(tmp_path, tiny_llama, seed=1)
    plan = adapter_plan(1, adapter, spec_of(tiny_llama))
    make_tiny_adapter(tmp_path, tiny_llama, seed=2)
    with opened(kind, tiny_llama) as (_, table), pytest.raises(BadModel, match="has changed since it was loaded"):
        table.read(plan)()
