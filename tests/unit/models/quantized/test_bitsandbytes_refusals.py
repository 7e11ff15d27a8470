"""Checkpoints of bitsandbytes that are not supported, or not what they say, are refused by field or tensor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models.damage import refusal
from support.models.quantized_checkpoints import ALL, write_quantized
from unit.models.conftest import Copy
from unit.models.quantized.test_quantized_refusals import Q, change, configure, refused_weights

STATE = f"{Q}.weight.quant_state.bitsandbytes__nf4"


@pytest.fixture(scope="module")
def nf4(tmp_path_factory: pytest.TempPathFactory, llama: Path) -> Path:
    return write_quantized(tmp_path_factory.mktemp("nf4"), llama, *ALL["nf4 with scales in codes"])[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bnb_4bit_quant_type": "fp4"}, "bnb_4bit_quant_type = 'fp4' is not supported; supported are nf4"),
        ({"bnb_4bit_quant_type": None}, "bnb_4bit_quant_type is absent and is not supported"),
        ({"bnb_4bit_quant_storage": "bfloat16"}, "bnb_4bit_quant_storage = 'bfloat16' is not supported"),
        ({"load_in_4bit": False}, "load_in_4bit = False is not supported; supported are True"),
        ({"load_in_8bit": "yes"}, "load_in_8bit = 'yes' must be true or false"),
    ],
)
def test_settings_are_refused_by_field(nf4: Path, copy: Copy, changes: dict[str, Any], words: str) -> None:
    path = copy(nf4)
    configure(path, **changes)
    assert refusal(path).startswith(f"config.json: quantization_config.{words}")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quant_type": "fp4"}, "quant_type = 'fp4' is not supported; supported are nf4"),
        ({"shape": [64]}, "shape = [64] must list outputs and inputs"),
        ({"shape": [2**40, 2**40]}, ""),
        ({"blocksize": 48}, "blocksize = 48 is not supported for 64 inputs"),
        ({"nested_blocksize": 128}, "nested_blocksize = 128 is not supported; supported are 256"),
        ({"nested_offset": "high"}, "nested_offset = 'high' must be a finite number"),
    ],
)
def test_what_a_matrix_says_is_checked(nf4: Path, copy: Copy, changes: dict[str, Any], words: str) -> None:
    path = copy(nf4)

    def edited(state: torch.Tensor) -> torch.Tensor:
        content = {**json.loads(bytes(state.tolist())), **changes}
        return torch.tensor(list(json.dumps(content).encode()), dtype=torch.uint8)

    change(path, STATE, edited)
    expected = f"{STATE}: {words}" if words else f"tensor {Q}.weight is U8 [2048, 1]"
    assert expected in refusal(path)


def test_another_table_is_refused(nf4: Path, copy: Copy) -> None:
    path = copy(nf4)
    change(path, f"{Q}.weight.quant_map", lambda levels: levels * 2)
    assert f"tensor {Q}.weight.quant_map is not the table of NF4" in refusal(path)


def test_an_absent_part_is_named(nf4: Path, copy: Copy) -> None:
    path = copy(nf4)
    change(path, f"{Q}.weight.nested_quant_map", lambda _: None)
    assert f"tensor {Q}.weight.nested_quant_map is absent, but the module is quantized" in refusal(path)


def test_scales_that_are_not_finite_are_refused(nf4: Path, copy: Copy) -> None:
    path = copy(nf4)
    change(path, f"{Q}.weight.nested_absmax", lambda scales: scales * torch.nan)
    assert f"tensor {Q}.weight.absmax holds scales that are not finite" in refused_weights(path)
