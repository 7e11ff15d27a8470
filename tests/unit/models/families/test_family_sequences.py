"""Every family against transformers: sequences that share, wait and begin again, from either format of files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from headrace_engine.config import ComputeDtype
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.backends.cpu_sequences import CpuLanes, cpu_model
from support.backends.torch_sequences import Lane, Lanes, load, random_ids, reference
from support.models.json_files import read_json
from support.models.tiny_gguf import ARCHITECTURES
from support.models.tiny_models import FAMILIES, make_tiny_family, make_tiny_gguf

COUNT = 20
PROMPT = random_ids(37, seed=1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, torch.Tensor, list[int]]]:
    """What was made of each family so far: its files, and what transformers says to the prompt."""
    return {}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest, made: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Files, logits before each generated id, and the ids."""
    name = request.param
    if name not in made:
        path = make_tiny_family(tmp_path_factory.mktemp("family"), name)
        prompt = torch.tensor([PROMPT])
        ids = reference(path).generate(prompt, max_new_tokens=COUNT, do_sample=False, eos_token_id=None)
        with torch.inference_mode():
            logits = reference(path)(ids[:, :-1]).logits[0]
        made[name] = path, logits[len(PROMPT) - 1 :], ids[0].tolist()
    return made[name]


@contextmanager
def opened(backend: str, path: Path) -> Iterator[Lanes]:
    """Sequences on a backend, in float32."""
    if backend == "torch":
        yield Lanes(load(path))
        return
    with cpu_model(path, dtype=ComputeDtype.FLOAT32) as model:
        yield CpuLanes(model)


def check(lane: Lane, expected: tuple[Path, torch.Tensor, list[int]], first: int = 0) -> None:
    """The ids of transformers, and logits near its own, from a generated id on."""
    _, logits, ids = expected
    assert lane.ids[: len(ids)] == ids
    torch.testing.assert_close(torch.stack(lane.scores)[: COUNT - first], logits[first:], rtol=0, atol=1e-4)


@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_sequences_are_those_of_transformers(backend: str, family: Any) -> None:
    """In one chunk; n > 1, after a cached prefix, in chunks; and computed again after preemption."""
    with opened(backend, family[0]) as lanes:
        whole = lanes.add(PROMPT, new_tokens=COUNT)
        lanes.greedy([whole], COUNT)
        shared = [lanes.add(PROMPT, new_tokens=COUNT, shared=whole, shared_tokens=32) for _ in range(2)]
        chunked = lanes.add(PROMPT, new_tokens=COUNT)
        lanes.greedy([chunked, *shared], COUNT, chunk=5, stagger=2)
        again = lanes.add(whole.ids[: len(PROMPT) + 9], new_tokens=COUNT)
        lanes.greedy([again], COUNT - 9)
    for lane in (whole, chunked, *shared):
        check(lane, family)
    check(again, family, first=9)


@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_gguf_files_of_the_same_weights_say_the_same(backend: str, family: Any, tmp_path: Path) -> None:
    config = read_json(family[0] / "config.json")
    one_norm = config.get("num_ln_in_parallel_attn") != 2 and config.get("parallel_attn", True)
    biased = config["model_type"] == "deepseek_v2" and config["attention_bias"]
    mixed = config["model_type"] == "glm4_moe_lite"  # Files name the number of dense layers, which are the first.
    if config["model_type"] not in ARCHITECTURES or not one_norm or biased or mixed:
        pytest.skip("no converter writes this family as GGUF, or its files are not read")
    with opened(backend, make_tiny_gguf(tmp_path / "tiny.gguf", family[0])) as lanes:
        lane = lanes.add(PROMPT, new_tokens=COUNT)
        lanes.greedy([lane], COUNT)
    check(lane, family)


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    """Odd sizes that any family may have."""
    kv_heads = draw(st.integers(1, 3))
    return {
        "num_key_value_heads": kv_heads,
        "num_attention_heads": kv_heads * draw(st.integers(1, 3)),
        "head_dim": 2 * draw(st.integers(2, 20)),
        "hidden_size": 4 * draw(st.integers(3, 30)),
        "intermediate_size": draw(st.integers(1, 150)),
        "sliding_window": draw(st.integers(1, 40)),
    }


def check_shape(path: Path, chunk: int) -> None:
    """The logits of transformers after a prompt in chunks, on either backend."""
    with torch.inference_mode():
        expected = reference(path)(torch.tensor([PROMPT])).logits[0, -1]
    for backend in ("cpu", "torch"):
        with opened(backend, path) as lanes:
            lane = lanes.add(PROMPT)
            while lane.waiting:
                lanes.step((lane, min(chunk, lane.waiting)))
        torch.testing.assert_close(lane.scores[0], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["gemma2", "ministral"])
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shape=shapes(), chunk=st.integers(1, 40))
def test_any_windows_heads_and_sizes(name: str, shape: dict[str, Any], chunk: int, tmp_path: Path) -> None:
    changes = shape if name == "ministral" else {**shape, "hidden_size": shape["num_attention_heads"] * 12}
    check_shape(make_tiny_family(tmp_path / "model", name, **changes), chunk)


@pytest.mark.parametrize("name", ["command r7b", "phi2", "stablelm parallel", "starcoder2 window"])
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shape=shapes(), quarter=st.integers(1, 9), chunk=st.integers(1, 40))
def test_any_sizes_with_layer_norm(name: str, shape: dict[str, Any], quarter: int, chunk: int, tmp_path: Path) -> None:
    """Of heads that share the hidden size, and rotate as a whole or in part."""
    del shape["head_dim"]
    shape["hidden_size"] = shape["num_attention_heads"] * 8 * quarter
    check_shape(make_tiny_family(tmp_path / "model", name, **shape), chunk)


@st.composite
def latents(draw: st.DrawFn) -> dict[str, Any]:
    """Odd sizes of latents, but even ones where transformers rotates pairs beside them, and of parts of heads."""
    heads, rotating, still = draw(st.integers(1, 4)), 2 * draw(st.integers(1, 10)), 2 * draw(st.integers(0, 10))
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "hidden_size": heads * 4 * draw(st.integers(2, 9)),
        "qk_rope_head_dim": rotating,
        "qk_nope_head_dim": still + 2,
        "v_head_dim": draw(st.integers(1, rotating + still + 2)),
        "kv_lora_rank": 2 * draw(st.integers(1, 20)),
        "q_lora_rank": draw(st.none() | st.integers(1, 40)),
    }


@pytest.mark.parametrize("name", ["deepseek2 biases", "deepseek3", "minicpm3"])
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shape=latents(), chunk=st.integers(1, 40))
def test_any_latents_and_parts_of_heads(name: str, shape: dict[str, Any], chunk: int, tmp_path: Path) -> None:
    check_shape(make_tiny_family(tmp_path / "model", name, **shape), chunk)


@st.composite
def mixtures(draw: st.DrawFn) -> dict[str, Any]:
    """Odd counts and sizes of experts, but of multiples of four, as transformers multiplies them."""
    count = draw(st.integers(1, 12))
    return {
        "num_experts": count,
        "num_experts_per_tok": draw(st.integers(1, count)),
        "moe_intermediate_size": 4 * draw(st.integers(1, 22)),
        "shared_expert_intermediate_size": draw(st.integers(1, 90)),
        "norm_topk_prob": draw(st.booleans()),
        "hidden_size": 8 * draw(st.integers(1, 12)),
    }


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shape=mixtures(), chunk=st.integers(1, 40))
def test_any_numbers_and_sizes_of_experts(shape: dict[str, Any], chunk: int, tmp_path: Path) -> None:
    check_shape(make_tiny_family(tmp_path / "model", "qwen2 moe", **shape), chunk)
