"""Any number in a config's rotary embedding is refused by its field, or gives tables of numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from headrace_engine.errors import BadModel
from headrace_engine.models.config_fields import LEAST_NUMBER, MOST_NUMBER, ConfigFields
from headrace_engine.models.rope.reading import LEAST_FACTOR, rope_from_config
from headrace_engine.models.rope.tables import inverse_frequencies, rotary_tables

HEAD, LENGTH = 4, 64
EXTREMES: list[Any] = [
    *(LEAST_NUMBER, 1e-9, 1, 1 + 2**-52, 1e9, MOST_NUMBER),
    *(0, -1, 5e-324, 1e-320, 1e300, 10**50, float("nan"), float("inf"), True, "1", [], {}),
]
KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "llama3": {"factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": {"factor": 2.0, "beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": 1.0, "mscale": 1.0},
    "longrope": {"factor": 2.0, "attention_factor": 1.0},
}
LENGTHS = {"original_max_position_embeddings": 32}
FACTORS = {"short_factor": [1.0] * (HEAD // 2), "long_factor": [1.0] * (HEAD // 2)}
CASES = [(kind, name) for kind, fields in KINDS.items() for name in ("rope_theta", *LENGTHS, *fields)]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_an_extreme_is_refused_or_gives_numbers(kind: str, name: str) -> None:
    refused: list[str] = []
    for value in EXTREMES:
        fields = {"mscale_all_dim": 0.5, "rope_type": kind, **LENGTHS, **KINDS[kind], **FACTORS, name: value}
        try:
            rope = rope_from_config(ConfigFields({"rope_scaling": fields}, "config.json"), HEAD, LENGTH)
        except BadModel as error:
            refused.append(error.message)
            continue
        for length in (LENGTH // 4, LENGTH * 2, 2**31 - 1):
            with np.errstate(over="ignore", divide="ignore"):
                made = replace(rope, length=length)
                assert np.isfinite(inverse_frequencies(made)).all()
                assert np.isfinite(rotary_tables(made, LENGTH).cos).all(), (fields, length)
    assert refused
    assert all(message.startswith("config.json: rope_scaling.") for message in refused)


@pytest.mark.parametrize(
    "factor", [0, -1.0, 1e-300, LEAST_NUMBER, 6e-30, 1e300, float("nan"), float("inf"), True, "1", None]
)
def test_a_factor_of_a_list_gives_angles_that_are_numbers(factor: Any) -> None:
    fields = {"rope_type": "longrope", **LENGTHS, **FACTORS, "long_factor": [1.0, factor]}
    with pytest.raises(BadModel, match=r"long_factor = .* must list 2 numbers, .* from 1\.26218e-29 to"):
        rope_from_config(ConfigFields({"rope_scaling": fields}, "config.json"), HEAD, LENGTH)


def test_the_least_factor_gives_numbers_at_the_last_position() -> None:
    fields = {"rope_type": "longrope", **LENGTHS, **FACTORS, "long_factor": [1.0, LEAST_FACTOR]}
    rope = rope_from_config(ConfigFields({"rope_scaling": fields}, "config.json"), HEAD, LENGTH)
    frequencies = inverse_frequencies(replace(rope, theta=1.0, length=2**31 - 1))
    assert np.isfinite(np.float32(2**31) * frequencies).all()
