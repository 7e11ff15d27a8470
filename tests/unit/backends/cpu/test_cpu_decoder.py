"""The cpu backend's step against transformers and the torch backend, and against itself in other batches and chunks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from headrace_engine.config import ActivationQuant, ComputeDtype, KvCacheMode, WeightQuant
from headrace_engine.environment import ISA_VARIABLE
from headrace_engine.native import Isa, PackedMatrix, machine_isas
from support.backends.cpu_sequences import CpuLanes, cpu_model
from support.backends.same_tokens import ROUNDING, same_tokens
from support.backends.torch_sequences import EVERYTHING, Lanes, load, random_ids, reference_logits
from support.models.tiny_models import DECODER_VARIANTS, make_tiny_gguf, make_tiny_llama

BLOCK = 16
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
VARIANTS = DECODER_VARIANTS | {
    "llama heads of 24": (make_tiny_llama, {"head_dim": 24, "attention_bias": True}),
    "llama heads of 8": (make_tiny_llama, {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 8}),
    "llama odd sizes": (make_tiny_llama, {"hidden_size": 72, "intermediate_size": 100, "head_dim": 32}),
    "llama rope llama3": (make_tiny_llama, {"rope_parameters": LLAMA3}),
}


@pytest.fixture(scope="module")
def model(tiny_llama, level):
    with cpu_model(tiny_llama) as model:
        yield model


def generated(lanes, prompts, count, **way):
    """Lanes that generated `count` ids for each prompt."""
    mine = [lanes.add(prompt, new_tokens=count) for prompt in prompts]
    lanes.greedy(mine, count, **way)
    return mine


def last(lanes, ids):
    """Logits after the last id."""
    lane = lanes.add(ids)
    lanes.step((lane, len(ids)))
    return lane.scores[0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_bc121_logits_are_those_of_transformers(variant, tmp_path):
    make, overrides = VARIANTS[variant]
    path, ids = make(tmp_path, **overrides), random_ids(45, seed=1)
    expected = reference_logits(path, ids)
    with cpu_model(path) as model:
        lanes = CpuLanes(model)
        whole, parts = lanes.add(ids), lanes.add(ids)
        lanes.step((whole, len(ids)))
        lanes.step((parts, 30))
        lanes.step((parts, 15))
    torch.testing.assert_close(whole.scores[0], expected[-1], rtol=0, atol=1e-4)
    assert torch.equal(parts.scores[0], whole.scores[0])


@pytest.mark.parametrize("variant", ["llama", "llama heads of 24", "qwen2 tied", "mistral window"])
def test_generates_the_tokens_of_the_torch_backend(variant, tmp_path):
    """In float32, sixteen prompts together, in chunks, some beginning later."""
    make, overrides = VARIANTS[variant]
    path = make(tmp_path, **overrides)
    prompts = [random_ids(1 + 5 * number, seed=number) for number in range(16)]
    expected = generated(Lanes(load(path)), prompts, 24)
    with cpu_model(path) as model:
        got = generated(CpuLanes(model), prompts, 24, chunk=20, stagger=1)
    ids = ([lane.ids for lane in lanes] for lanes in (expected, got))
    same_tokens(*ids, [torch.stack(lane.scores) for lane in expected])


@pytest.mark.parametrize("way", [{}, {"stagger": 3}, {"chunk": 5}], ids=str)
def test_bc098_sixteen_prompts_together_have_the_bits_of_each(way, model):
    prompts = [random_ids(1 + 5 * number, seed=number) for number in range(16)]
    alone = [generated(CpuLanes(model), [prompt], 24)[0] for prompt in prompts]
    together = generated(CpuLanes(model, seed=1), prompts, 24, **way)
    for one, other in zip(alone, together, strict=True):
        assert one.ids == other.ids
        assert torch.equal(torch.stack(one.scores), torch.stack(other.scores))


@pytest.mark.parametrize("prefix", [0, 2 * BLOCK])
@pytest.mark.parametrize("chunk", [1, BLOCK - 1, BLOCK, 3 * BLOCK + 4, EVERYTHING])
def test_bc097_a_prompt_in_chunks_gives_the_bits_of_the_whole(chunk, prefix, model):
    """With a prefix, its blocks were computed by another sequence, as after a hit of the prefix cache."""
    prompt = random_ids(3 * BLOCK + 5, seed=4)
    lanes = CpuLanes(model)
    whole = lanes.add(prompt, new_tokens=16)
    lanes.greedy([whole], 16)
    lane = lanes.add(prompt, new_tokens=16, shared=whole, shared_tokens=prefix)
    lanes.greedy([lane], 16, chunk=chunk)
    assert lane.ids == whole.ids
    assert torch.equal(torch.stack(lane.scores), torch.stack(whole.scores))


def test_a_sequence_that_is_computed_again_gives_the_same_bits(model):
    """After preemption, prompt and generated ids are computed as one prompt."""
    lanes = CpuLanes(model)
    (lane,) = generated(lanes, [random_ids(21, seed=5)], 20)
    again = lanes.add(lane.ids[:-1])
    lanes.step((again, len(again.ids)))
    assert torch.equal(again.scores[0], lane.scores[-1])


def test_bits_do_not_depend_on_the_number_of_threads(tiny_llama):
    ids, scores = random_ids(300, seed=6), []
    for threads in (1, 3):
        with cpu_model(tiny_llama, num_threads=threads) as model:
            scores.append(last(CpuLanes(model), ids))
    assert torch.equal(*scores)


@pytest.mark.parametrize("isa", ["avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16"])
def test_every_instruction_set_computes_the_same_to_rounding(isa, tiny_llama, model, monkeypatch):
    if Isa[isa.upper()] > model.cpu.isa or Isa[isa.upper()] not in machine_isas(model.cpu.native):
        pytest.skip(f"{isa} is above the level of the model")
    monkeypatch.setenv(ISA_VARIABLE, isa)
    ids = random_ids(90, seed=7)
    with cpu_model(tiny_llama) as other:
        assert other.cpu.isa.name.lower() == isa
        torch.testing.assert_close(last(CpuLanes(other), ids), last(CpuLanes(model), ids), rtol=0, atol=1e-4)


@pytest.mark.parametrize("block_size", [32, 128])
def test_the_block_size_does_not_change_the_numbers(block_size, tiny_llama, model):
    ids = random_ids(150, seed=8)
    with cpu_model(tiny_llama, block_size=block_size) as other:
        assert torch.equal(last(CpuLanes(other, block_size=block_size), ids), last(CpuLanes(model), ids))


def agreement(expected, got):
    """Share of tokens whose most likely id is the same, and the smallest cosine, over lanes fed with the same ids."""
    a, b = (torch.cat([torch.stack(lane.scores) for lane in lanes]).double() for lanes in (expected, got))
    share = (a.argmax(1) == b.argmax(1)).double().mean().item()
    return share, torch.nn.functional.cosine_similarity(a, b).min().item()


def check_agreement(least, expected, got):
    """At least this share of tokens, and this cosine."""
    share, cosine = agreement(expected, got)
    print(f"most likely id the same: {share:.3f}, smallest cosine: {cosine:.6f}")
    assert share >= least[0]
    assert cosine >= least[1]


def forced(lanes, sequences):
    """Logits after every id of given sequences, computed one id a step in one batch."""
    mine = [lanes.add(ids[:1], new_tokens=len(ids)) for ids in sequences]
    for place in range(1, len(sequences[0]) + 1):
        lanes.step(*((lane, 1) for lane in mine))
        for lane, ids in zip(mine, sequences, strict=True):
            lane.ids += ids[place : place + 1]
    return mine


def wide(path, **overrides):
    """A model of the width of a small real one, in which rounding averages out as it does there."""
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 4}
    return make_tiny_llama(path, **{**sizes, "tie_word_embeddings": True, **overrides})


SEQUENCES = [random_ids(24, seed=number) for number in range(12)]


@pytest.fixture(scope="module")
def wide_llama(tmp_path_factory):
    return wide(tmp_path_factory.mktemp("wide"))


@pytest.fixture(scope="module")
def wide_reference(wide_llama):
    return forced(Lanes(load(wide_llama)), SEQUENCES)


@pytest.mark.parametrize(
    ("dtype", "least"), [(ComputeDtype.BFLOAT16, (0.96, 0.9995)), (ComputeDtype.FLOAT16, (0.99, 0.99999))]
)
def test_half_precision_stays_near_float32(dtype, least, wide_llama, wide_reference):
    """Every token after ids that are given: how often the most likely id is the same, and how near the logits are."""
    with cpu_model(wide_llama, dtype=dtype) as model:
        check_agreement(least, wide_reference, forced(CpuLanes(model), SEQUENCES))


@pytest.mark.parametrize(
    "changes",
    [
        {"weight_quant": WeightQuant.INT8},
        {"weight_quant": WeightQuant.INT8, "weight_quant_group_size": 64},
        {"weight_quant": WeightQuant.INT4},
        {"weight_quant": WeightQuant.INT4, "weight_quant_group_size": 32, "dtype": ComputeDtype.BFLOAT16},
        {"weight_quant": WeightQuant.INT4, "weight_quant_group_size": 0},
    ],
    ids=str,
)
def test_quantised_weights_compute_as_their_values_do(changes, wide_llama):
    """Against the torch backend in float32 on the values that the packed weights stand for."""
    with cpu_model(wide_llama, **changes) as model:
        expected = forced(Lanes(twin(model, wide_llama)), SEQUENCES)
        check_agreement((0.96, 0.9995), expected, forced(CpuLanes(model), SEQUENCES))
        # Few rows are multiplied in codes, whose activations keep 15 bits.
        check_agreement(
            (0.98, 0.9999 if model.dtype is ComputeDtype.FLOAT32 else 0.9995),
            expected[:3],
            forced(CpuLanes(model), SEQUENCES[:3]),
        )


def twin(model, path):
    """The torch backend's model with the values of the cpu backend's weights."""
    dense = {
        name: torch.from_numpy(np.stack([tensor.row(row) for row in range(tensor.matrix.outputs)]))
        for name, tensor in model.weights.tensors.items()
        if isinstance(tensor, PackedMatrix)
    }
    original = load(path)
    return replace(original, weights={**original.weights, **dense})


def test_quantised_activations_stay_near_whole_ones(wide_llama):
    changes = {"weight_quant": WeightQuant.INT8, "weight_quant_group_size": 32}
    lanes = []
    for quant in ActivationQuant.NONE, ActivationQuant.INT8:
        with cpu_model(wide_llama, activation_quant=quant, **changes) as model:
            lanes.append(forced(CpuLanes(model), SEQUENCES[:2]))
    check_agreement((0.85, 0.99), *lanes)


@pytest.mark.parametrize("mode", KvCacheMode)
def test_keys_and_values_are_stored_as_on_the_torch_backend(mode, wide_llama):
    """Both have float32 weights here, so that what differs is rounding, and codes at the edge of two."""
    expected = forced(Lanes(load(wide_llama, kv_cache_mode=mode)), SEQUENCES)
    with cpu_model(wide_llama, kv_cache_mode=mode) as model:
        check_agreement((0.98, 0.9998), expected, forced(CpuLanes(model), SEQUENCES))


@pytest.mark.parametrize("block_size", [16, 32, 64])
@pytest.mark.parametrize("head_dim", [32, 64, 80, 96, 128])
@pytest.mark.parametrize("mode", KvCacheMode)
def test_bc108_every_kv_mode_has_every_head_and_block_size(mode, head_dim, block_size, tmp_path):
    """A prompt, then ids one by one; few codes of a model of random weights may put the logits of one id far off."""
    path = make_tiny_llama(tmp_path, num_attention_heads=2, num_key_value_heads=1, head_dim=head_dim)
    ids = random_ids(70, seed=head_dim)
    expected = reference_logits(path, ids)[-20:]
    with cpu_model(path, kv_cache_mode=mode, block_size=block_size) as model:
        lanes = CpuLanes(model, block_size=block_size)
        lane = lanes.add(ids[:50], new_tokens=20)
        lanes.step((lane, 50))
        got = lanes.follow(lane, ids[50:])
    cosine = torch.nn.functional.cosine_similarity(got.double(), expected.double()).median()
    assert cosine >= {KvCacheMode.DEFAULT: 1 - 1e-6, KvCacheMode.INT8: 0.999, KvCacheMode.UINT4: 0.9}[mode]


def test_bfloat16_generates_the_tokens_of_float32(wide_llama):
    prompts = [random_ids(2 + 3 * number, seed=number) for number in range(12)]
    expected = generated(Lanes(load(wide_llama)), prompts, 12)
    with cpu_model(wide_llama, dtype=ComputeDtype.BFLOAT16) as model:
        got = generated(CpuLanes(model), prompts, 12)
    for one, other in zip(expected, got, strict=True):
        parting = next((i for i, pair in enumerate(zip(one.ids, other.ids, strict=True)) if pair[0] != pair[1]), None)
        if parting is not None:
            best = one.scores[parting - len(one.ids) + 12].topk(2).values
            assert best[0] - best[1] < 10 * ROUNDING["bfloat16"]


@pytest.mark.parametrize("quant", ["Q4_1", "Q8_0"])
def test_blocks_of_a_gguf_compute_as_their_values_do(quant, tmp_path):
    """Against the torch backend in float32 on what the gguf package makes of the same file; q and k interleaved."""
    path = make_tiny_gguf(tmp_path / "tiny.gguf", wide(tmp_path / "wide"), quant)
    expected = forced(Lanes(load(path)), SEQUENCES)
    with cpu_model(path) as model:
        assert model.dtype is ComputeDtype.BFLOAT16
        check_agreement((0.96, 0.9995), expected, forced(CpuLanes(model), SEQUENCES))
    with cpu_model(path, dtype=ComputeDtype.FLOAT32) as model:
        got = forced(CpuLanes(model), SEQUENCES)
    for one, other in zip(expected, got, strict=True):
        torch.testing.assert_close(torch.stack(one.scores), torch.stack(other.scores), rtol=0, atol=1e-3)
