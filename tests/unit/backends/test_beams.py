"""Beam search beside `generate` of transformers, on random tiny models in float32."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from headrace_engine.generation_config import BeamStopping
from headrace_engine.ipc.commands import BeamPlan
from headrace_engine.sampling_params import LogitRules
from support.backends.torch_sequences import random_ids, reference
from support.core.model_rig import ModelRig
from support.models.tiny_models import make_tiny_family, make_tiny_llama
from transformers import GenerationConfig

STOPPING = {BeamStopping.HEURISTIC: False, BeamStopping.FIRST: True, BeamStopping.NEVER: "never"}
FAMILIES = ("llama", "qwen3", "gemma2", "mistral window")
VOCAB = 384


@pytest.fixture(scope="session", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("beams")
    family = request.param
    path = make_tiny_llama(folder / "m") if family == "llama" else make_tiny_family(folder / "m", family)
    return path, reference(path)


@pytest.fixture(params=["torch", "cpu"])
def rig(request: pytest.FixtureRequest, model: tuple[Path, Any]) -> Iterator[ModelRig]:
    rig = ModelRig(model[0], request.param)
    yield rig
    rig.close()


def draw(seed: int) -> dict[str, Any]:
    """Return a random search."""
    rng = random.Random(seed)
    beams = rng.randint(2, 6)
    max_new = rng.choice([1, 2, 9, 24])
    return {
        "prompt": random_ids(rng.choice([1, 5, 16, 37]), seed),
        "beams": beams,
        "n": rng.randint(1, beams),
        "penalty": rng.choice([-1.5, 0.0, 1.0, 2.0]),
        "stopping": rng.choice(list(STOPPING)),
        "eos": sorted(rng.sample(range(VOCAB), rng.choice([1, 3, 40, 120]))),
        "max_new": max_new,
        "min_new": min(max_new, rng.choice([0, 0, 1, 4])),
        "repetition": rng.choice([1.0, 1.0, 1.3]),
        "ngram": rng.choice([0, 0, 2]),
        "bad": rng.choice([(), ((3,), (5, 7), (9,))]),
    }


def expected(model: Any, case: dict[str, Any]) -> list[list[int]]:
    """Return the ids that transformers generates."""
    config = GenerationConfig(
        num_beams=case["beams"],
        num_return_sequences=case["n"],
        length_penalty=case["penalty"],
        early_stopping=STOPPING[case["stopping"]],
        eos_token_id=case["eos"],
        pad_token_id=case["eos"][0],
        max_new_tokens=case["max_new"],
        min_new_tokens=case["min_new"] or None,
        repetition_penalty=case["repetition"],
        no_repeat_ngram_size=case["ngram"],
        bad_words_ids=[list(word) for word in case["bad"]] or None,
        do_sample=False,
    )
    prompt = torch.tensor([case["prompt"]])
    found = model.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=config)
    return [_cut(row.tolist()[len(case["prompt"]) :], case) for row in found]


def _cut(ids: list[int], case: dict[str, Any]) -> list[int]:
    """Return the ids up to the one that ends them: transformers fills texts up with others."""
    ends = (place + 1 for place, token in enumerate(ids) if token in case["eos"])
    return ids[: next(ends, len(ids))]


def start(rig: ModelRig, case: dict[str, Any]) -> list[int]:
    rules = LogitRules(repetition_penalty=case["repetition"], no_repeat_ngram_size=case["ngram"], bad_words=case["bad"])
    plan = BeamPlan(case["beams"], case["penalty"], case["stopping"])
    plain = rules == LogitRules()
    return rig.search(
        case["prompt"],
        case["max_new"],
        plan,
        case["n"],
        eos_ids=tuple(case["eos"]),
        min_new=case["min_new"],
        rules=None if plain else rules,
    )


def found(rig: ModelRig, keys: list[int]) -> list[list[int]]:
    return [rig.tokens[key] for key in keys]


@pytest.mark.parametrize("block", range(3))
def test_texts_are_those_of_transformers(rig: ModelRig, model: tuple[Path, Any], block: int) -> None:
    """Several searches of random configs at once, beside greedy and sampled sequences."""
    cases = [draw(100 * block + number) for number in range(8)]
    keys = [start(rig, case) for case in cases]
    greedy = rig.add(random_ids(9, 1), 20)
    rig.run()
    for case, each in zip(cases, keys, strict=True):
        assert found(rig, each) == expected(model[1], case), case
    assert len(rig.tokens[greedy]) == 20
