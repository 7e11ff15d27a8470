"""The decoder on the torch backend, against transformers in float32 and against itself in other batches and chunks."""

from __future__ import annotations

import pytest
import torch
from headrace_engine.config import ComputeDtype, KvCacheMode
from headrace_engine.errors import BadModel
from support.backends.same_tokens import same_tokens
from support.backends.torch_sequences import EVERYTHING, Lanes, load, random_ids, reference, reference_logits
from support.models.tiny_models import DECODER_VARIANTS, make_tiny_llama

BLOCK = 16
VARIANTS = DECODER_VARIANTS | {
    "llama head_dim": (make_tiny_llama, {"head_dim": 24}),
}


@pytest.fixture(scope="module")
def model(tiny_llama):
    return load(tiny_llama)


def all_logits(model, ids):
    """Logits after each id, computed in one chunk for each prefix end that is wanted."""
    lanes = Lanes(model)
    lane = lanes.add(ids[:1], new_tokens=len(ids))
    for id_ in ids[1:]:
        lanes.step((lane, 1))
        lane.ids.append(id_)
    lanes.step((lane, 1))
    return torch.stack(lane.scores)


@pytest.mark.parametrize("variant", VARIANTS)
def test_bc121_logits_are_those_of_transformers(variant, tmp_path):
    make, overrides = VARIANTS[variant]
    path, ids = make(tmp_path, **overrides), random_ids(45, seed=1)
    expected, loaded = reference_logits(path, ids), load(path)
    torch.testing.assert_close(all_logits(loaded, ids), expected, rtol=0, atol=1e-4)
    lanes = Lanes(loaded)
    lane = lanes.add(ids)
    lanes.step((lane, len(ids)))
    torch.testing.assert_close(lane.scores[0], expected[-1], rtol=0, atol=1e-4)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 1), (6, 2), (7, 1), (14, 2), (5, 5), (12, 4), (40, 8)])
def test_bc120_logits_with_any_ratio_of_heads(heads, kv_heads, tmp_path):
    sizes = {"hidden_size": heads * 8, "num_attention_heads": heads, "num_key_value_heads": kv_heads}
    path, ids = make_tiny_llama(tmp_path, **sizes), random_ids(40, seed=2)
    lanes = Lanes(load(path))
    lane = lanes.add(ids)
    lanes.step((lane, len(ids)))
    torch.testing.assert_close(lane.scores[0], reference_logits(path, ids)[-1], rtol=0, atol=1e-4)


def test_bc120_query_heads_must_be_a_multiple_of_kv_heads(tmp_path):
    path = make_tiny_llama(tmp_path)
    config = (path / "config.json").read_text()
    changed = config.replace('"num_attention_heads": 4', '"num_attention_heads": 3')
    assert changed != config
    (path / "config.json").write_text(changed)
    with pytest.raises(BadModel):
        load(path)


@pytest.mark.parametrize("variant", ["llama", "qwen2 tied", "mistral window"])
def test_bc121_32_greedy_ids_are_those_of_generate(variant, tmp_path):
    make, overrides = VARIANTS[variant]
    path = make(tmp_path, **overrides)
    prompts = [random_ids(length, seed=3) for length in (1, 17, 40)]
    model = reference(path)
    model.generation_config.eos_token_id = None
    expected = []
    with torch.inference_mode():
        for prompt in prompts:
            ids = torch.tensor([prompt])
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=32, do_sample=False)
            expected.append(out[0, len(prompt) :].tolist())
    lanes = Lanes(load(path))
    mine = [lanes.add(prompt, new_tokens=32) for prompt in prompts]
    lanes.greedy(mine, 32)
    ids = [lane.ids[-32:] for lane in mine]
    same_tokens(expected, ids, [torch.stack(lane.scores) for lane in mine])


@pytest.mark.parametrize("prefix", [0, BLOCK, 2 * BLOCK])
@pytest.mark.parametrize("chunk", [1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 4, 3 * BLOCK + 5, EVERYTHING])
def test_bc097_a_prompt_in_chunks_gives_the_bits_of_the_whole(chunk, prefix, tiny_llama, model):
    """With a prefix, its blocks were computed by another sequence."""
    prompt = random_ids(3 * BLOCK + 5, seed=4)
    lanes = Lanes(model, block_size=BLOCK)
    whole = lanes.add(prompt, new_tokens=32)
    lanes.greedy([whole], 32)
    lane = lanes.add(prompt, new_tokens=32, shared=whole, shared_tokens=prefix)
    lanes.greedy([lane], 32, chunk=chunk)
    same_tokens([whole.ids], [lane.ids], [torch.stack(whole.scores)])
    assert torch.equal(torch.stack(lane.scores), torch.stack(whole.scores))
    torch.testing.assert_close(lane.scores[0], reference_logits(tiny_llama, prompt)[-1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("way", [{}, {"stagger": 3}, {"chunk": 5}, {"stagger": 1, "chunk": 20}], ids=str)
def test_bc098_sixteen_prompts_together_have_the_bits_of_each(way, model):
    prompts = [random_ids(1 + 5 * number, seed=number) for number in range(16)]
    alone = []
    for prompt in prompts:
        lanes = Lanes(model)
        alone.append(lanes.add(prompt, new_tokens=24))
        lanes.greedy([alone[-1]], 24)
    lanes = Lanes(model, seed=1)
    together = [lanes.add(prompt, new_tokens=24) for prompt in prompts]
    lanes.greedy(together, 24, **way)
    same_tokens([a.ids for a in alone], [t.ids for t in together])
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(torch.stack(one.scores), torch.stack(other.scores))


@pytest.mark.parametrize("num_threads", [1, 2])
def test_bc098_the_bits_hold_with_the_shapes_of_a_real_model(num_threads, tmp_path):
    """Products of this size are split among threads and blocked in libraries as tiny ones are not."""
    sizes = {"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3}
    model = load(make_tiny_llama(tmp_path, **sizes), num_threads=num_threads)
    prompts = [random_ids(length, seed=length) for length in (1, 30, 90, 200)]
    lanes = Lanes(model)
    alone = [lanes.add(prompt, new_tokens=4) for prompt in prompts]
    for lane in alone:
        lanes.greedy([lane], 4)
    together = [lanes.add(prompt, new_tokens=4) for prompt in prompts]
    lanes.greedy(together, 4, chunk=50)
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(torch.stack(one.scores), torch.stack(other.scores))


def test_a_sequence_that_is_computed_again_gives_the_same_bits(model):
    """After preemption, prompt and generated ids are computed as one prompt."""
    lanes = Lanes(model)
    lane = lanes.add(random_ids(21, seed=5), new_tokens=20)
    lanes.greedy([lane], 20)
    again = lanes.add(lane.ids[:-1])
    lanes.step((again, len(again.ids)))
    assert torch.equal(again.scores[0], lane.scores[-1])


@pytest.mark.parametrize("block_size", [8, 16, 128, 256])
def test_the_block_size_does_not_change_the_numbers(block_size, model):
    prompt = random_ids(150, seed=6)
    scores = []
    for size in (16, block_size):
        lanes = Lanes(model, block_size=size)
        lane = lanes.add(prompt)
        lanes.step((lane, len(prompt)))
        scores.append(lane.scores[0])
    torch.testing.assert_close(*scores, rtol=0, atol=1e-4)


def test_two_sequences_may_share_prefix_blocks_in_one_step(model):
    """The prefix is computed once; both go on from it together, and it is not written again."""
    prefix = random_ids(2 * BLOCK, seed=7)
    tails = [random_ids(9, seed=8), random_ids(14, seed=9)]
    lanes = Lanes(model)
    first = lanes.add(prefix + tails[0])
    lanes.step((first, 2 * BLOCK))
    second = lanes.add(prefix + tails[1], shared=first, shared_tokens=2 * BLOCK)
    before = lanes.pool.keys[1].tensors[0][first.blocks[:2]].clone()
    lanes.step((first, len(tails[0])), (second, len(tails[1])))
    assert torch.equal(lanes.pool.keys[1].tensors[0][first.blocks[:2]], before)
    for lane in (first, second):
        alone = Lanes(model, seed=2)
        expected = alone.add(lane.ids)
        alone.step((expected, len(expected.ids)))
        assert torch.equal(lane.scores[0], expected.scores[0])


@pytest.mark.parametrize("mode", [KvCacheMode.INT8, KvCacheMode.UINT4])
def test_quantized_kv_has_the_same_bits_in_any_batch(mode, tiny_llama):
    """Whatever was computed when, all of it is read as it is stored."""
    lanes = Lanes(load(tiny_llama, kv_cache_mode=mode))
    prompts = [random_ids(2 * BLOCK, seed=11) + random_ids(1 + 5 * number, seed=number) for number in range(6)]
    alone = [lanes.add(prompt, new_tokens=12) for prompt in prompts]
    for lane in alone:
        lanes.greedy([lane], 12)
    together = [lanes.add(prompt, new_tokens=12, shared=alone[0], shared_tokens=2 * BLOCK) for prompt in prompts]
    lanes.greedy(together, 12, stagger=1, chunk=7)
    same_tokens([lane.ids for lane in alone], [lane.ids for lane in together])
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(torch.stack(one.scores), torch.stack(other.scores))
    again = lanes.add(alone[2].ids[:-1])
    lanes.step((again, len(again.ids)))
    assert torch.equal(again.scores[0], alone[2].scores[-1])


@pytest.mark.parametrize("dtype", ["BFLOAT16", "FLOAT16"])
def test_half_precision_stays_near_float32(dtype, tiny_llama):
    ids = random_ids(40, seed=10)
    lanes = Lanes(load(tiny_llama, dtype=ComputeDtype(dtype)))
    lane = lanes.add(ids)
    lanes.step((lane, 30))
    lanes.step((lane, 10))
    expected = reference_logits(tiny_llama, ids)[-1]
    assert lane.scores[0].dtype == getattr(torch, dtype.lower())
    assert (lane.scores[0].float() - expected).abs().max() < 0.05 * expected.abs().max()
