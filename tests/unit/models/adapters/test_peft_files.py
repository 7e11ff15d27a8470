"""Directories of PEFT: what is read of them, and what is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from headrace_engine.errors import BadModel
from headrace_engine.models.adapters.adapter import AdapterFiles, content_digest
from headrace_engine.models.adapters.opening import open_adapter
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.spec import DecoderSpec
from safetensors.torch import load_file, save_file
from support.models.json_files import read_json, write_json
from support.models.tiny_adapters import make_tiny_adapter
from support.models.tiny_models import make_tiny_family, make_tiny_llama

Q = "base_model.model.model.layers.0.self_attn.q_proj"
A, B = f"{Q}.lora_A.weight", f"{Q}.lora_B.weight"
WEIGHTS = "adapter_model.safetensors"


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    return make_tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def spec(model: Path) -> DecoderSpec:
    """What it computes."""
    return open_model(str(model)).spec


@pytest.fixture
def adapter(model: Path, tmp_path: Path) -> Path:
    """An adapter for it."""
    return make_tiny_adapter(tmp_path / "adapter", model)


def edit(folder: Path, **fields: Any) -> None:
    """Change fields of an adapter's config."""
    file = folder / "adapter_config.json"
    write_json(file, {**read_json(file), **fields})


def rewrite(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the tensors of an adapter."""
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


def rename(folder: Path, change: Callable[[str], str]) -> None:
    """Change the names of an adapter's tensors."""
    tensors = load_file(folder / WEIGHTS)
    save_file({change(name): tensor for name, tensor in tensors.items()}, folder / WEIGHTS)


def refusal(folder: Path, spec: DecoderSpec) -> str:
    """Return why an adapter is refused."""
    with pytest.raises(BadModel) as refused:
        content_digest(open_adapter(folder, spec))
    return refused.value.message


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"use_dora": True}, "use_dora = True is not supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save = ['lm_head'] is not supported"),
        ({"bias": "all"}, "bias = 'all' is not supported; supported is none"),
        ({"lora_bias": True}, "lora_bias = True is not supported"),
        ({"peft_type": "LOHA"}, "peft_type = 'LOHA' is not supported; supported is LORA"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices = [1] is not supported"),
        ({"target_parameters": ["experts"]}, "target_parameters = ['experts'] is not supported"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
        ({"megatron_config": {"a": 1}}, "megatron_config"),
        ({"use_qalora": True}, "use_qalora"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights = 'pissa_niter_4' means that the model's own"),
        ({"some_new_method": 3}, "some_new_method = 3 is not supported"),
        ({"r": 0}, "r = 0 must be an integer from 1"),
        ({"r": 5}, "has rank 4, but adapter_config.json gives it rank 5"),
        ({"lora_alpha": "x"}, "lora_alpha = 'x' must be a finite number"),
        ({"rank_pattern": {".*q_proj": 4}}, "rank_pattern has the expression '.*q_proj'"),
        ({"alpha_pattern": {"q_proj": 0}}, "q_proj = 0 must be above 0"),
        ({"target_modules": ["q_proj", "qkv"]}, "target_modules names 'qkv', which is no module of this model"),
        ({"target_modules": ["q_proj"]}, "changes modules that adapter_config.json does not list"),
        ({"exclude_modules": ["q_proj"]}, "changes modules that adapter_config.json does not list"),
        ({"layers_to_transform": [0, "1"]}, "layers_to_transform"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    adapter: Path, spec: DecoderSpec, fields: dict[str, Any], words: str
) -> None:
    edit(adapter, **fields)
    assert words in refusal(adapter, spec)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tensors: tensors.pop(A), "layers.0.self_attn.q_proj has no lora_A"),
        (lambda tensors: tensors.pop(B), "layers.0.self_attn.q_proj has no lora_B"),
        (lambda tensors: [tensors.pop(f"{Q}.lora_{side}.weight") for side in "AB"], "has no tensors of modules"),
        (
            lambda tensors: tensors.update({A: tensors[A][:, 1:].clone()}),
            "inputs",
        ),
        (lambda tensors: tensors.update({B: tensors[B][1:].clone()}), "outputs"),
        (lambda tensors: tensors.update({A: tensors[A].int()}), "is I32"),
        (lambda tensors: tensors[A].fill_(float("nan")), "holds values that are not finite"),
        (lambda tensors: tensors.clear(), "holds no tensors"),
    ],
)
def test_bc140_damaged_tensors_are_refused(
    adapter: Path, spec: DecoderSpec, change: Callable[[dict[str, Any]], Any], words: str
) -> None:
    rewrite(adapter, change)
    assert words in refusal(adapter, spec)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("base_model.model.lm_head", "changes lm_head, which is no module"),
        ("base_model.model.model.layers.7.self_attn.q_proj", "changes model.layers.7.self_attn.q_proj, which is no"),
        ("base_model.model.model.layers.0.mlp.experts.0.up_proj", "which is no module of this model"),
        ("model.layers.0.self_attn.q_proj", "stands twice"),
    ],
)
def test_modules_that_are_not_there_are_refused(adapter: Path, spec: DecoderSpec, name: str, words: str) -> None:
    def add(tensors: dict[str, Any]) -> None:
        tensors.update({f"{name}.lora_{side}.weight": tensors[f"{Q}.lora_{side}.weight"].clone() for side in "AB"})

    rewrite(adapter, add)
    assert words in refusal(adapter, spec)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("base_model.model.model.embed_tokens.lora_embedding_A", "adapts an embedding"),
        (f"{Q}.lora_magnitude_vector", "DoRA"),
        (f"{Q}.lora_B.bias", "is a bias"),
        ("base_model.model.lm_head.weight", "is not part of a LoRA adapter"),
    ],
)
def test_other_tensors_are_refused(adapter: Path, spec: DecoderSpec, name: str, words: str) -> None:
    rewrite(adapter, lambda tensors: tensors.update({name: tensors[A].clone()}))
    assert words in refusal(adapter, spec)


def test_bc139_names_with_and_without_prefixes_are_read(adapter: Path, spec: DecoderSpec) -> None:
    """A model without its head, tensors saved with the adapter's name, and plain names of the model."""
    expected = content_digest(open_adapter(adapter, spec))
    for old, new in (
        ("base_model.model.model.", "base_model.model."),
        (".weight", ".default.weight"),
        ("base_model.model.", ""),
    ):
        rename(adapter, lambda name, old=old, new=new: name.replace(old, new))  # type: ignore[misc]
        assert content_digest(open_adapter(adapter, spec)) == expected


def test_scales_follow_patterns_and_the_root(model: Path, spec: DecoderSpec, tmp_path: Path) -> None:
    """The first pattern of the file that a name ends with counts; PEFT sorts them when it saves."""
    patterns = {"rank_pattern": {"layers.1.mlp.up_proj": 9}, "alpha_pattern": {"up_proj": 6, "layers.0.mlp.up_proj": 1}}
    root = make_tiny_adapter(tmp_path / "root", model, use_rslora=True, **patterns)
    plain = make_tiny_adapter(tmp_path / "plain", model, **patterns)
    scales = {name: factors.scale for name, factors in open_adapter(root, spec).factors.items()}
    assert (scales["layers.0.q"], scales["layers.0.up"], scales["layers.1.up"]) == (4.0, 0.5, 2.0)
    scales = {name: factors.scale for name, factors in open_adapter(plain, spec).factors.items()}
    assert (scales["layers.0.q"], scales["layers.0.up"], scales["layers.1.up"]) == (2.0, 0.25, 6 / 9)


@pytest.mark.parametrize(
    "fields",
    [
        {"target_modules": ".*q_proj"},
        {"target_modules": "all-linear"},
        {"layers_to_transform": [1], "target_modules": ["o_proj", "up_proj"]},
        {"target_modules": ["layers.1.self_attn.q_proj"]},
        {"exclude_modules": ["layers.0.self_attn.q_proj"]},
    ],
)
def test_every_way_to_name_targets(model: Path, spec: DecoderSpec, tmp_path: Path, fields: dict[str, Any]) -> None:
    found = open_adapter(make_tiny_adapter(tmp_path, model, **fields), spec)
    tensors = load_file(tmp_path / WEIGHTS)
    assert len(found.factors) == len(tensors) // 2 > 0


def test_copies_have_one_digest(adapter: Path, spec: DecoderSpec, tmp_path: Path) -> None:
    """It is that of what is computed: neither of the folder nor of how the config is written, but of every value."""
    digest = content_digest(open_adapter(adapter, spec))
    copied = adapter.rename(tmp_path / "elsewhere")
    edit(copied, base_model_name_or_path="another", inference_mode=False)
    assert content_digest(open_adapter(copied, spec)) == digest
    edit(copied, lora_alpha=9)
    assert content_digest(open_adapter(copied, spec)) != digest
    edit(copied, lora_alpha=8)
    rewrite(copied, lambda tensors: tensors[B].view(-1)[-1].add_(1))
    assert content_digest(open_adapter(copied, spec)) != digest


def test_a_joined_matrix_shares_its_first_factor(tmp_path: Path) -> None:
    model = make_tiny_family(tmp_path / "model", "phi3")
    spec = open_model(str(model)).spec
    found: AdapterFiles = open_adapter(
        make_tiny_adapter(tmp_path / "adapter", model, target_modules=["qkv_proj"]), spec
    )
    assert {name.split(".")[2] for name in found.factors} == {"q", "k", "v"}
    assert found.factors["layers.0.q"].a.stored == found.factors["layers.0.v"].a.stored
    assert [found.factors[f"layers.0.{part}"].b.shape[0] for part in "qkv"] == [
        spec.query_width,
        spec.kv_width,
        spec.kv_width,
    ]


def test_latent_attention_is_not_adapted_but_mlps_are(tmp_path: Path) -> None:
    model, mlp = make_tiny_family(tmp_path / "model", "minicpm3"), ("gate", "up", "down")
    spec = open_model(str(model)).spec
    adapter = make_tiny_adapter(tmp_path / "mlp", model, target_modules=[f"{name}_proj" for name in mlp])
    found: AdapterFiles = open_adapter(adapter, spec)
    assert set(found.factors) == {f"layers.{layer}.{name}" for layer in range(2) for name in mlp}
    for name in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"):
        words = "is no module of this model that adapters can change; these are: gate_proj, up_proj, down_proj"
        message = refusal(make_tiny_adapter(tmp_path / name, model, target_modules=[name]), spec)
        assert name in message
        assert f"{words}; none of latent attention, whose heads lie otherwise" in message


@pytest.mark.parametrize("module", ["experts.0.gate_proj", "shared_experts.gate_proj"])
def test_the_layers_of_what_adapters_change_are_named(module: str, tmp_path: Path) -> None:
    """Those of dense layers; a matrix of an expert has the last name of theirs, but is none of them."""
    model = make_tiny_family(tmp_path / "model", "deepseek3")
    adapter = make_tiny_adapter(
        tmp_path / "adapter", model, target_modules=["o_proj"], layers_to_transform=[0], layers_pattern="layers"
    )
    dense, other = (f"base_model.model.model.layers.{part}" for part in ("0.self_attn.o_proj", f"1.mlp.{module}"))
    rename(adapter, lambda name: name.replace(dense, other))
    message = refusal(adapter, open_model(str(model)).spec)
    assert f"changes model.layers.1.mlp.{module}, which is no module of this model" in message
    assert "these are: gate_proj, up_proj, down_proj of layer 0; none of experts, shared ones included" in message


def test_files_that_are_not_there_are_named(adapter: Path, model: Path, spec: DecoderSpec, tmp_path: Path) -> None:
    assert "adapter_config.json is absent" in refusal(model, spec)
    assert "no such file or directory" in refusal(tmp_path / "nowhere", spec)
    weights = adapter / WEIGHTS
    content = weights.read_bytes()
    weights.write_bytes(content[:-1])
    assert "truncated" in refusal(adapter, spec)
    weights.rename(adapter / "adapter_model.bin")
    assert "pickled weights run code" in refusal(adapter, spec)
    (adapter / "adapter_model.bin").unlink()
    assert "adapter_model.safetensors is absent" in refusal(adapter, spec)
    (adapter / "adapter_config.json").write_text(json.dumps([1]))
    assert "must hold a JSON object" in refusal(adapter, spec)


def test_an_adapter_of_another_model_is_refused(adapter: Path, tmp_path: Path) -> None:
    wider = open_model(str(make_tiny_llama(tmp_path / "wider", hidden_size=128))).spec
    assert "but the model's matrix has 128 " in refusal(adapter, wider)
