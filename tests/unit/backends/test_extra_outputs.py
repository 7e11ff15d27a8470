"""Optional outputs of a step, against transformers: prompt logprobs, embeddings, hidden states."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from headrace_engine.backends import extra_outputs
from headrace_engine.backends.cpu import make_runner as make_cpu
from headrace_engine.backends.cpu import prompt_logprobs
from headrace_engine.backends.torch import make_runner as make_torch
from headrace_engine.backends.torch import workspace
from headrace_engine.config import ActivationQuant, ComputeDtype, KvCacheMode, WeightQuant
from headrace_engine.core.row_fields import PromptIds
from headrace_engine.core.runner import SequenceStep
from headrace_engine.sampling_params import SamplingParams
from safetensors.torch import load_file, save_file
from support.backends.runners import plan_for, ready
from support.backends.torch_sequences import random_ids, reference
from support.models.tiny_models import make_tiny_family, make_tiny_llama, make_tiny_mistral, make_tiny_qwen2

BACKENDS = {"cpu": make_cpu, "torch": make_torch}
GREEDY = SamplingParams(temperature=0.0, logprobs=True)
VOCAB, HIDDEN = 384, 64


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A tiny random model of each family; the head of one is tied to its embeddings, that of another adds a bias."""
    root = tmp_path_factory.mktemp("models")
    return {
        "llama": make_tiny_llama(root / "llama"),
        "mistral": make_tiny_mistral(root / "mistral", sliding_window=16),
        "qwen2": make_tiny_qwen2(root / "qwen2", tie_word_embeddings=True),
        "phi2": make_tiny_family(root / "phi2", "phi2"),
    }


@pytest.fixture(params=BACKENDS)
def opened(request, monkeypatch):
    """Makes runners of one backend that are ready, and closed in the end; few rows of logits at a time."""
    runners = []
    monkeypatch.setattr(prompt_logprobs, "_ROWS", 8)
    monkeypatch.setattr(workspace, "LOGITS_AT_ONCE", VOCAB * 16)

    def open_one(path, **changes):
        runner = BACKENDS[request.param](plan_for(path, max_batch=4, **changes))
        runners.append(runner)
        return ready(runner)

    yield open_one
    for runner in runners:
        runner.close()


def whole(ids, block=0, top=3):
    """A prompt in one step, with all that can be asked for."""
    blocks = range(block, block + 8)
    return SequenceStep(ids, 0, blocks, GREEDY, prompt_logprobs=PromptIds(0, ids[1:], top), tensors=True)


def chunks(ids, size, block=0, top=3):
    """The same in chunks."""
    step = whole(ids, block, top)
    for start in range(0, len(ids), size):
        end = min(start + size, len(ids))
        part = replace(
            step,
            token_ids=ids[start:end],
            start=start,
            prompt_logprobs=PromptIds(0, ids[start + 1 : end + 1], top),
        )
        yield part if end == len(ids) else replace(part, sampling=None, tensors=False)


def vectors(answer):
    embedding, hidden = np.frombuffer(answer.tensors, dtype="<f4").reshape(2, HIDDEN)
    return embedding, hidden


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "phi2"])
def test_prompt_and_vectors_are_those_of_transformers(family, models, opened):
    """The last entry of hidden_states is what the head multiplies: it has gone through the final norm."""
    ids = random_ids(70, seed=1)
    (answer,) = opened(models[family]).run([whole(ids)])
    oracle = reference(models[family])
    with torch.inference_mode():
        found = oracle(torch.tensor([ids]), output_hidden_states=True)
    logprobs = found.logits[0, :-1].double().log_softmax(1)
    expected = logprobs.gather(1, torch.tensor(ids[1:]).unsqueeze(1)).squeeze(1)
    assert answer.prompt_logprobs.logprobs == pytest.approx(expected.tolist(), abs=1e-3)
    best = logprobs.topk(3)
    assert answer.prompt_logprobs.top_logprobs == pytest.approx(best.values.flatten().tolist(), abs=1e-3)
    assert np.mean(np.array(answer.prompt_logprobs.top_ids) == best.indices.flatten().numpy()) > 0.98
    embedding, hidden = vectors(answer)
    assert embedding.tolist() == found.hidden_states[0][0, -1].tolist()
    np.testing.assert_allclose(hidden, found.hidden_states[-1][0, -1].numpy(), rtol=0, atol=1e-3)
    np.testing.assert_allclose(
        oracle.lm_head(torch.tensor(hidden)).detach().numpy(), found.logits[0, -1].numpy(), rtol=0, atol=1e-3
    )


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2"])
@pytest.mark.parametrize("first", [0, 12, 69])
def test_states_are_summed_from_a_token_on(family, first, models, opened):
    """In chunks and beside others, with and without a sampled token."""
    runner, ids = opened(models[family]), random_ids(70, seed=6)
    with torch.inference_mode():
        found = reference(models[family])(torch.tensor([ids]), output_hidden_states=True)
    expected = found.hidden_states[-1][0, first:].double().sum(0).numpy()
    total = np.zeros(HIDDEN)
    for start in range(0, 70, 23):
        part = SequenceStep(ids[start : start + 23], start, range(8), GREEDY if start + 23 >= 70 else None)
        steps = [SequenceStep([5, 6], 0, [20], GREEDY), whole(random_ids(9, seed=3), block=24), part]
        pooled = max(0, first - start) if first < start + len(part.token_ids) else None
        *others, answer = runner.run([*steps[:2], replace(part, pooled=pooled)]) + [None] * (
            not part.sampling and pooled is None
        )
        assert [other.pooled for other in others] == [b"", b""]
        if pooled is not None:
            total += np.frombuffer(answer.pooled)
    np.testing.assert_allclose(total, expected, rtol=0, atol=2e-3)


def test_chunks_and_neighbours_change_nothing(models, opened):
    """In float32: alone at once, in chunks of any size, and beside others that ask for nothing or for more."""
    runner, ids = opened(models["llama"]), random_ids(41, seed=2)
    (alone,) = runner.run([whole(ids)])
    for size in (1, 7, 16):
        found = []
        for step in chunks(ids, size, block=8):
            neighbours = [SequenceStep([5, 6], 0, [20], GREEDY), whole(random_ids(9, seed=3), block=24, top=20)]
            quiet, answer, other = runner.run([neighbours[0], step, neighbours[1]])
            assert (quiet.prompt_logprobs, quiet.tensors) == (None, b"")
            assert len(other.prompt_logprobs.top_ids) == 8 * 20
            found += zip(
                answer.prompt_logprobs.logprobs,
                zip(*[iter(answer.prompt_logprobs.top_ids)] * 3, strict=True),
                strict=True,
            )
        tops = zip(*[iter(alone.prompt_logprobs.top_ids)] * 3, strict=True)
        assert found == list(zip(alone.prompt_logprobs.logprobs, tops, strict=True))
        assert replace(answer, prompt_logprobs=None) == replace(alone, prompt_logprobs=None)


def test_a_step_may_report_some_of_its_rows(models, opened):
    runner, ids = opened(models["llama"]), random_ids(30, seed=4)
    (everything,) = runner.run([whole(ids)])
    (some,) = runner.run([replace(whole(ids), prompt_logprobs=PromptIds(11, ids[12:20], 0))])
    assert some.prompt_logprobs.logprobs == everything.prompt_logprobs.logprobs[11:19]
    assert (some.prompt_logprobs.top_ids, some.prompt_logprobs.top_logprobs) == ([], [])


def test_a_chunk_that_draws_nothing_is_answered_where_it_scores(models, opened):
    runner, ids = opened(models["llama"]), random_ids(12, seed=5)
    quiet = SequenceStep(ids, 0, [2])
    (answer,) = runner.run([quiet, replace(quiet, blocks=[3], prompt_logprobs=PromptIds(0, ids[1:], 1)), quiet])
    assert (answer.token_id, answer.logprob, answer.error, len(answer.prompt_logprobs.logprobs)) == (None, None, "", 11)


@pytest.mark.parametrize("opened", ["cpu"], indirect=True)
@pytest.mark.parametrize(
    "storage",
    [
        {"dtype": ComputeDtype.BFLOAT16},
        {"weight_quant": WeightQuant.INT8, "activation_quant": ActivationQuant.INT8},
        {"weight_quant": WeightQuant.INT4, "weight_quant_group_size": 32, "kv_cache_mode": KvCacheMode.INT8},
    ],
    ids=str,
)
def test_other_formats_score_a_prompt_as_they_score_next_tokens(storage, models, opened):
    """Within the rounding by which products of few rows and of many differ."""
    runner, ids = opened(models["llama"], **storage), random_ids(40, seed=8)
    (answer,) = runner.run([whole(ids, top=5)])
    for place in (1, 9, 30, 39):
        reported = SamplingParams(temperature=0.0, logprobs=True, top_logprobs=20)
        (next_one,) = runner.run([SequenceStep(ids[:place], 0, range(8, 16), reported)])
        best = answer.prompt_logprobs.top_logprobs[5 * (place - 1) : 5 * place]
        assert best == pytest.approx([logprob for _, logprob in next_one.top[:5]], abs=0.15)
        theirs = dict(next_one.top).get(ids[place])
        assert theirs is None or answer.prompt_logprobs.logprobs[place - 1] == pytest.approx(theirs, abs=0.15)


def test_prompt_logprobs_change_no_token(models, opened):
    runner, ids = opened(models["llama"]), random_ids(25, seed=6)
    hot = SamplingParams(temperature=1.5, seed=4, logprobs=True, top_logprobs=5)
    step = replace(whole(ids), sampling=hot)
    (plain,) = runner.run([replace(step, prompt_logprobs=None, tensors=False)])
    (asked,) = runner.run([step])
    assert replace(asked, prompt_logprobs=None, tensors=b"") == plain


def test_a_prompt_with_non_finite_logits_fails_alone(tmp_path, opened):
    make_tiny_llama(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.embed_tokens.weight"][5] = torch.nan
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    runner = opened(tmp_path)
    good, bad = [10, 20, 30, 40], [10, 20, 5, 40]
    steps = [whole(good), replace(whole(bad, block=8), sampling=None), whole(good, block=16)]
    first, spoilt, last = runner.run(steps)
    assert (spoilt.error, spoilt.prompt_logprobs) == ("logits are not finite", None)
    assert first == last == runner.run([whole(good)])[0]


def test_no_more_rows_than_allowed_have_logits_at_once(models, opened, monkeypatch):
    """A prompt's logits never exist whole: they are computed a few rows at a time."""
    seen = []
    original = extra_outputs.collect_extras

    def counted(steps, drawn, score, at_once, *others):
        def counting(rows, forced):
            seen.append(len(rows))
            return score(rows, forced)

        return original(steps, drawn, counting, at_once, *others)

    for module in ("cpu.runner", "torch.sampling.extra_outputs"):
        monkeypatch.setattr(f"headrace_engine.backends.{module}.collect_extras", counted)
    opened(models["llama"]).run([whole(random_ids(100, seed=7))])
    assert sum(seen) == 99
    assert max(seen) <= 16
