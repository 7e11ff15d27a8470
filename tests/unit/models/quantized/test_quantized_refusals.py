"""Quantized checkpoints that are not supported, or not what their config says, are refused by field or tensor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from headrace_engine.errors import BadModel
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.weights import load_weights
from safetensors.torch import load_file, save_file
from support.models.damage import edit_json, refusal
from support.models.json_files import read_json
from support.models.quantized_checkpoints import ALL, SCHEMES, WEIGHTS, write_quantized
from unit.models.conftest import Copy

Q = "model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module", params=["gptq", "awq"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, llama: Path) -> Path:
    return write_quantized(tmp_path_factory.mktemp("quantized"), llama, *SCHEMES[request.param])[0]


@pytest.fixture(scope="module")
def of_gptq(tmp_path_factory: pytest.TempPathFactory, llama: Path) -> Path:
    return write_quantized(tmp_path_factory.mktemp("gptq"), llama, *SCHEMES["gptq"])[0]


def change(path: Path, name: str, edit: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
    """Replace a tensor of a checkpoint, or take it out."""
    tensors = load_file(path / WEIGHTS)
    changed = edit(tensors.pop(name))
    if changed is not None:
        tensors[name] = changed
    save_file(tensors, path / WEIGHTS, metadata={"format": "pt"})


def configure(path: Path, **changes: Any) -> None:
    """Set fields of the quantization's config."""
    config = read_json(path / "config.json")["quantization_config"]
    edit_json(path / "config.json", quantization_config={**config, **changes})


def refused_weights(path: Path) -> str:
    """What is said when the weights are read; headers and config are right."""
    files = open_model(str(path))
    with pytest.raises(BadModel) as caught:
        load_weights(files, torch.float32, torch.device("cpu"), lambda *_: None)
    return caught.value.message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"quant_method": "hqq"},
            "quant_method = 'hqq' is not supported; supported are awq, bitsandbytes",
        ),
        ({"quant_method": None}, "quant_method is absent"),
        ({"bits": 3}, "bits = 3 is not supported; supported are 4"),
        ({"bits": True}, "bits = True is not supported"),
        ({"group_size": 24}, "group_size = 24 is not supported; supported are -1 and multiples of 16"),
        ({"group_size": -2}, "group_size = -2"),
        ({"group_size": "32"}, "group_size = '32'"),
    ],
)
def test_settings_are_refused_by_field(made: Path, copy: Copy, changes: dict[str, Any], words: str) -> None:
    path = copy(made)
    configure(path, **changes)
    message = refusal(path)
    assert message.startswith("config.json: quantization_config.")
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"desc_act": "yes"}, "desc_act = 'yes' must be true or false"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format = 'marlin' is not supported; supported are gptq, gptq_v2"),
        ({"dynamic": {"-:.*down.*": {}}}, "dynamic = {'-:.*down.*': {}} is not supported"),
        ({"pack_dtype": "int8"}, "pack_dtype = 'int8'"),
    ],
)
def test_settings_of_gptq_are_refused(of_gptq: Path, copy: Copy, changes: dict[str, Any], words: str) -> None:
    path = copy(of_gptq)
    configure(path, **changes)
    assert f"quantization_config.{words}" in refusal(path)


def test_other_kernels_of_awq_are_refused(tmp_path: Path, llama: Path) -> None:
    packing, config = SCHEMES["awq"]
    path, _ = write_quantized(tmp_path / "made", llama, packing, {**config, "version": "gemv"})
    assert "quantization_config.version = 'gemv' is not supported; supported are gemm" in refusal(path)


@pytest.mark.parametrize("suffix", ["scales", "qzeros"])
def test_an_absent_part_is_named(made: Path, copy: Copy, suffix: str) -> None:
    path = copy(made)
    change(path, f"{Q}.{suffix}", lambda _: None)
    assert refusal(path) == f"{WEIGHTS}: tensor {Q}.{suffix} is absent, but the module is quantized"


@pytest.mark.parametrize("suffix", ["scales", "qzeros"])
def test_a_part_of_another_shape_is_named(made: Path, copy: Copy, suffix: str) -> None:
    path = copy(made)
    change(path, f"{Q}.{suffix}", lambda tensor: tensor[:1].contiguous())
    assert f"tensor {Q}.{suffix} is " in refusal(path)
    assert "but the quantized module needs " in refusal(path)


def test_codes_of_another_type_are_named(made: Path, copy: Copy) -> None:
    path = copy(made)
    change(path, f"{Q}.qweight", lambda tensor: tensor.float())
    assert f"tensor {Q}.qweight is F32" in refusal(path)


def test_a_matrix_that_is_there_twice_is_refused(made: Path, copy: Copy) -> None:
    path = copy(made)
    tensors = load_file(path / WEIGHTS)
    save_file({**tensors, f"{Q}.weight": torch.zeros(64, 64)}, path / WEIGHTS, metadata={"format": "pt"})
    assert f"tensor {Q}.weight is there both quantized and as numbers" in refusal(path)


@pytest.mark.parametrize("group", [-1, 2])
def test_inputs_of_a_group_that_is_not_there_are_refused(of_gptq: Path, copy: Copy, group: int) -> None:
    path = copy(of_gptq)
    change(path, f"{Q}.g_idx", lambda order: order.index_fill(0, torch.tensor(7), group))
    assert f"tensor {Q}.g_idx puts input 7 into group {group}; there are 2" in refusal(path)


def test_act_order_needs_the_groups_of_inputs(of_gptq: Path, copy: Copy) -> None:
    path = copy(of_gptq)
    configure(path, desc_act=True)
    change(path, f"{Q}.g_idx", lambda _: None)
    assert f"tensor {Q}.g_idx is absent, but the module is quantized" in refusal(path)


def test_scales_that_are_not_finite_are_refused(made: Path, copy: Copy) -> None:
    path = copy(made)
    change(path, f"{Q}.scales", lambda scales: scales * torch.inf)
    assert f"tensor {Q}.scales holds scales that are not finite" in refused_weights(path)


def test_zero_points_must_be_symmetric_where_the_config_says_so(of_gptq: Path, copy: Copy) -> None:
    path = copy(of_gptq)
    change(path, f"{Q}.qzeros", lambda zeros: zeros + 1)
    assert f"tensor {Q}.qzeros holds the zero point 9, but by the config codes are symmetric" in refused_weights(path)


def test_a_zero_point_beyond_the_codes_is_refused(of_gptq: Path, copy: Copy) -> None:
    """In the first version of the format it is stored one lower, so that 15 would stand for 16."""
    path = copy(of_gptq)
    configure(path, sym=False)
    change(path, f"{Q}.qzeros", lambda zeros: zeros | 15)
    assert f"tensor {Q}.qzeros holds the zero point 16; allowed: 0 to 15" in refused_weights(path)


def test_biases_of_zeros_are_left_out_with_a_warning(made: Path, copy: Copy) -> None:
    path = copy(made)
    tensors = load_file(path / WEIGHTS)
    save_file({**tensors, f"{Q}.bias": torch.zeros(64)}, path / WEIGHTS, metadata={"format": "pt"})
    assert open_model(str(path)).warnings == (f"not used, since they are zero: {Q}.bias",)
    save_file({**tensors, f"{Q}.bias": torch.ones(64)}, path / WEIGHTS, metadata={"format": "pt"})
    assert f"tensors that LlamaForCausalLM of config.json does not have: {Q}.bias" in refusal(path)


@pytest.mark.parametrize(
    ("scheme", "field"), [("block fp8", "activation_scheme"), ("fbgemm fp8", "activation_scale_ub")]
)
def test_fp8_of_activations_is_not_applied(tmp_path: Path, llama: Path, scheme: str, field: str) -> None:
    path = write_quantized(tmp_path / "made", llama, *ALL[scheme])[0]
    (warning,) = open_model(str(path)).warnings
    assert f"{field} is not applied: activation_quant of an install quantizes activations" in warning
