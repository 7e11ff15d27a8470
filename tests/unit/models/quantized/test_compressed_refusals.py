"""Checkpoints of compressed-tensors and FP8 that are not supported, or not what their config says, are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.weights import load_weights
from support.models.damage import edit_json, refusal
from support.models.json_files import read_json
from support.models.quantized_checkpoints import ALL, WEIGHTS, Packed, write_by_name, write_quantized
from support.models.tiny_models import make_tiny_family, make_tiny_llama
from unit.models.conftest import Copy
from unit.models.quantized.test_quantized_refusals import Q, change, configure, refused_weights

CONFIG = "config.json: quantization_config."
GROUP = f"{CONFIG}config_groups.group_0."


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory, llama: Path) -> Path:
    return write_quantized(tmp_path_factory.mktemp("packed"), llama, *ALL["packed 4 bits"])[0]


@pytest.fixture(scope="module")
def float8(tmp_path_factory: pytest.TempPathFactory, llama: Path) -> Path:
    return write_quantized(tmp_path_factory.mktemp("float8"), llama, *ALL["float8"])[0]


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory, llama: Path) -> Path:
    return write_quantized(tmp_path_factory.mktemp("blocks"), llama, *ALL["block fp8"])[0]


def regroup(path: Path, weights: dict[str, Any] | None = None, **changes: Any) -> None:
    """Set fields of the only group, and of its `weights`."""
    config = read_json(path / "config.json")["quantization_config"]
    group = {**config["config_groups"]["group_0"], **changes}
    group["weights"] = {**group["weights"], **(weights or {})}
    configure(path, config_groups={"group_0": group})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "marlin-24"}, "format = 'marlin-24' is not supported; supported are pack-quantized"),
        ({"format": None}, "format is absent and is not supported"),
        ({"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme = {'num_bits': 8} is not supported"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config = {'format': 'sparse-24-bitmask'} is"),
        ({"transform_config": {"config_groups": {}}}, "transform_config = "),
        ({"config_groups": {}}, "config_groups = {} must be an object"),
        ({"config_groups": {"W4A16": ["Linear"]}}, "config_groups.W4A16 = ['Linear'] must be an object"),
        ({"ignore": "lm_head"}, "ignore = 'lm_head' must be a list of strings"),
        ({"ignore": ["lm_head", "re:.*q_proj"]}, f"leaves out {Q}, but the file has it quantized"),
        ({"ignore": []}, ""),
        ({"ignore": ["re:(a"]}, "holds an expression that is not valid"),
        ({"ignore": ["re:a"] * 65}, "has too many or too long expressions"),
    ],
)
def test_settings_are_refused_by_field(packed: Path, copy: Copy, changes: dict[str, Any], words: str) -> None:
    path = copy(packed)
    configure(path, **changes)
    message = refusal(path)
    assert words in message
    if changes == {"ignore": []}:
        assert message == (
            f"{WEIGHTS}: tensor lm_head.weight is stored as numbers, but quantization_config.config_groups says it is "
            "quantized"
        )
    else:
        assert message.startswith(CONFIG)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"actorder": "group"}, "actorder = 'group' is not supported"),
        ({"actorder": True}, "actorder = True is not supported"),
        ({"num_bits": 3}, "num_bits = 3 is not supported; supported are 4, 8"),
        ({"type": "float"}, "type = 'float' is not supported; supported are int"),
        ({"strategy": "tensor_group"}, "strategy = 'tensor_group' is not supported"),
        ({"group_size": 20}, "group_size = 20 is not supported"),
        ({"dynamic": True}, "dynamic = True is not supported"),
    ],
)
def test_settings_of_a_group_are_refused(packed: Path, copy: Copy, weights: dict[str, Any], words: str) -> None:
    path = copy(packed)
    regroup(path, weights)
    assert refusal(path).startswith(f"{GROUP}weights.{words}")


def test_a_router_may_be_of_another_class(tmp_path: Path) -> None:
    """Some versions of transformers have Linear for routers, and others a class of their own."""
    packing, config = ALL["int8"]
    source = make_tiny_family(tmp_path / "source", "qwen3 moe")
    path, _ = write_quantized(tmp_path / "made", source, packing, config)
    assert open_model(str(path)).tensors["layers.0.router"].stored.storage == "F32"
    configure(
        path, config_groups={"group_0": {**config["config_groups"]["group_0"], "targets": ["Linear", "re:.*mlp.gate$"]}}
    )
    assert "mlp.gate.weight is stored as numbers, but" in refusal(path)


def test_a_module_that_no_group_names_is_refused(packed: Path, copy: Copy) -> None:
    path = copy(packed)
    regroup(path, targets=["re:.*mlp.*"])
    assert "has no group with model.layers.0.self_attn.k_proj, but the file has it quantized" in refusal(path)


def test_groups_are_chosen_by_name_before_class(tmp_path: Path, llama: Path) -> None:
    """Layers of one class in 4 bits, but one projection in 8 as an expression says, and some as numbers."""
    four, config = ALL["packed 4 bits"]
    eight, other = ALL["packed 8 bits"]
    groups = {
        "group_0": config["config_groups"]["group_0"],
        "group_1": {**other["config_groups"]["group_0"], "targets": ["re:.*self_attn.q_proj$"]},
    }
    config = {**config, "config_groups": groups, "ignore": ["lm_head", "re:.*down_proj"]}

    def packing(name: str, weight: torch.Tensor) -> Packed | None:
        if "down_proj" in name:
            return None
        return eight(weight) if "q_proj" in name else four(weight)

    path, plain = write_by_name(tmp_path / "made", llama, packing, config)
    weights = load_weights(open_model(str(path)), torch.float32, torch.device("cpu"), lambda *_: None)
    expected = load_weights(open_model(str(plain)), torch.float32, torch.device("cpu"), lambda *_: None)
    assert all(torch.equal(weights[name], value) for name, value in expected.items())


def test_an_endless_expression_ends(packed: Path, copy: Copy) -> None:
    path = copy(packed)
    configure(path, ignore=[r"re:(((\w|\w\w|\w\w\w|\.|\.\w)+)+)+[!?]"])
    assert "which takes more than" in refusal(path)


def test_quantization_of_activations_is_not_applied(tmp_path: Path, llama: Path) -> None:
    packing, config = ALL["int8"]
    group = {**config["config_groups"]["group_0"], "input_activations": {"num_bits": 8, "dynamic": False}}

    def with_scales(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        tensors, plain = packing(weight)
        return {**tensors, "input_scale": torch.ones(1)}, plain

    config = {**config, "config_groups": {"group_0": group}}
    files = open_model(str(write_quantized(tmp_path / "made", llama, with_scales, config)[0]))
    assert len(files.warnings) == 2
    assert "config_groups.group_0.input_activations is not applied" in files.warnings[0]
    assert "14 scales" in files.warnings[1]


def test_a_shape_that_is_not_that_of_the_codes_is_refused(packed: Path, copy: Copy) -> None:
    path = copy(packed)
    change(path, f"{Q}.weight_shape", lambda shape: shape * 2)
    assert f"tensor {Q}.weight_shape says [128, 128], but the codes are 64 rows of 57 to 64" in refusal(path)


def test_codes_that_are_no_numbers_are_refused(float8: Path, copy: Copy) -> None:
    path = copy(float8)
    change(path, f"{Q}.weight", lambda codes: (codes.float() * torch.nan).to(torch.float8_e4m3fn))
    assert f"tensor {Q}.weight holds codes that are no numbers" in refused_weights(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fmt": "e5m2"}, "fmt = 'e5m2' is not supported; supported are e4m3"),
        ({"weight_block_size": None}, "weight_block_size is absent and must list two sizes of a block"),
        ({"weight_block_size": [16, 0]}, "weight_block_size = [16, 0] must list two sizes of a block"),
    ],
)
def test_settings_of_fp8_are_refused(blocks: Path, copy: Copy, changes: dict[str, Any], words: str) -> None:
    path = copy(blocks)
    configure(path, **changes)
    assert refusal(path).startswith(f"{CONFIG}{words}")


def test_blocks_of_another_size_are_refused_by_tensor(blocks: Path, copy: Copy) -> None:
    path = copy(blocks)
    configure(path, weight_block_size=[2**40, 2**40])
    assert "weight_scale_inv is F32 [" in refusal(path)


def test_rows_and_columns_may_end_within_a_block(tmp_path: Path) -> None:
    """Scales of 48 × 48 for 64 × 64 weights."""
    source = make_tiny_llama(tmp_path / "source")

    def packed(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        rows, columns = (-(-size // 48) for size in weight.shape)
        scales = torch.rand(rows, columns) + 0.5
        codes = weight.to(torch.float8_e4m3fn)
        spread = scales.repeat_interleave(48, 0)[: len(weight)].repeat_interleave(48, 1)[:, : weight.shape[1]]
        return {"weight": codes, "weight_scale_inv": scales}, codes.float() * spread

    config = {"quant_method": "fp8", "weight_block_size": [48, 48]}
    path, plain = write_quantized(tmp_path / "made", source, packed, config)
    weights = load_weights(open_model(str(path)), torch.float32, torch.device("cpu"), lambda *_: None)
    expected = load_weights(open_model(str(plain)), torch.float32, torch.device("cpu"), lambda *_: None)
    assert all(torch.equal(weights[name], value) for name, value in expected.items())


def test_modules_that_no_config_describes_are_refused(packed: Path, copy: Copy) -> None:
    path = copy(packed)
    edit_json(path / "config.json", quantization_config=None)
    message = refusal(path)
    assert message.startswith("config.json: quantization_config is absent and must describe the quantized modules")
    assert ".weight_" in message


def test_settings_may_have_their_older_name(packed: Path, copy: Copy) -> None:
    path = copy(packed)
    config = read_json(path / "config.json")["quantization_config"]
    del config["quant_method"]
    edit_json(path / "config.json", quantization_config=None, compression_config=config)
    assert open_model(str(path)).weight_bytes == open_model(str(packed)).weight_bytes


def test_a_method_must_be_named(packed: Path, copy: Copy) -> None:
    path = copy(packed)
    edit_json(path / "config.json", quantization_config={"bits": 4})
    assert "quant_method is absent" in refusal(path)
