"""Models that also see, for text alone: the ids of transformers, from files as published and as it writes them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from headrace_engine.config import ComputeDtype
from headrace_engine.errors import BadModel
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.weights import load_weights
from safetensors.torch import load_file, save_file
from support.backends.cpu_sequences import CpuLanes, cpu_model
from support.backends.torch_sequences import Lanes, load, random_ids
from support.models.damage import edit_json
from support.models.json_files import read_json, write_json
from support.models.quantized_checkpoints import ALL, Packed, write_by_name
from support.models.tiny_models import draw, make_tiny_family, tiny_sizes
from support.models.tiny_tokenizer import make_tiny_tokenizer
from unit.models.test_families import config, refusal

COUNT = 12
CPU = torch.device("cpu")
PROMPT = random_ids(37, seed=5)
_MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 4, 4]}
_ROPE = {"rope_type": "default", "rope_theta": 1e4}
_MLLAMA = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_global_layers": 1, "attention_heads": 2,
    "image_size": 28, "patch_size": 14, "vision_output_dim": 64, "intermediate_layers_indices": [0],
    "supported_aspect_ratios": [[1, 1]], "max_num_tiles": 1,
}  # fmt: skip
_CLIP = {
    "model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
}  # fmt: skip
_SIGLIP = {**_CLIP, "model_type": "siglip_vision_model"}
_PIXTRAL = {**_CLIP, "model_type": "pixtral"}
_QWEN = {"depth": 1, "hidden_size": 32, "embed_dim": 32, "num_heads": 2, "out_hidden_size": 64, "intermediate_size": 64}
_QWEN3 = {**_QWEN, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
WINDOWS = {"num_hidden_layers": 7, "head_dim": 24, "sliding_window": 9, "query_pre_attn_scalar": 24}
ARCHITECTURES: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    "gemma3": ("Gemma3", {**WINDOWS, "tie_word_embeddings": True}, _SIGLIP),
    "llava": ("Llava", {"model_type": "llama"}, _CLIP),
    "mistral3": ("Mistral3", {"model_type": "mistral", "sliding_window": None}, _PIXTRAL),
    "ministral3": ("Mistral3", {"model_type": "ministral3", "head_dim": 24, "sliding_window": None}, _PIXTRAL),
    "qwen2 vl": ("Qwen2VL", {"rope_parameters": {**_MROPE, "mrope_section": [2, 3, 3]}}, _QWEN),
    "qwen2.5 vl": ("Qwen2_5_VL", {"rope_parameters": {**_MROPE, "mrope_section": [2, 3, 3]}}, _QWEN),
    "qwen3 vl moe": (
        "Qwen3VLMoe",
        {
            "head_dim": 24,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 40,
            "rope_parameters": {**_MROPE, "mrope_interleaved": True},
        },
        {**_QWEN3, "embed_dim": 32},
    ),
    "mllama": (
        "Mllama",
        {"num_hidden_layers": 5, "cross_attention_layers": [1, 3], "pad_token_id": 0, "rope_parameters": _ROPE},
        _MLLAMA,
    ),
    "qwen3 vl": ("Qwen3VL", {"head_dim": 24, "rope_parameters": {**_MROPE, "mrope_interleaved": True}}, _QWEN3),
}
"""The prefix of transformers' classes, and settings of both parts."""


def make(path: Path, name: str) -> Any:
    """Write a model, and return it."""
    import transformers

    prefix, text, vision = ARCHITECTURES[name]
    tied = bool(text.get("tie_word_embeddings"))
    sizes = tiny_sizes({"tie_word_embeddings": tied, **text})
    made = getattr(transformers, f"{prefix}Config")(
        text_config=sizes, vision_config=dict(vision), tie_word_embeddings=tied, image_token_index=380
    )
    model = getattr(transformers, f"{prefix}ForConditionalGeneration")(made).eval()
    draw(model, 0)
    model.save_pretrained(path)
    make_tiny_tokenizer(path)
    return model


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_ids_of_text_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = make(tmp_path, name)
    ids = model.generate(torch.tensor([PROMPT]), max_new_tokens=COUNT, do_sample=False, eos_token_id=None)
    with torch.inference_mode():
        logits = model(input_ids=ids[:, :-1]).logits[0][len(PROMPT) - 1 :]
    with cpu_model(tmp_path, dtype=ComputeDtype.FLOAT32) as loaded:
        for lanes in (Lanes(load(tmp_path)), CpuLanes(loaded)):
            lane = lanes.add(PROMPT, new_tokens=COUNT)
            lanes.greedy([lane], COUNT, chunk=9)
            assert lane.ids[: ids.shape[1]] == ids[0].tolist()
            torch.testing.assert_close(torch.stack(lane.scores)[:COUNT], logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("copied", [None, "twice", "alone"])
def test_phi3_vision_says_what_phi3_says(copied: str | None, tmp_path: Path) -> None:
    """Files as published, which transformers runs by code of the model alone: tensors of what sees beside Phi-3's.

    The embedding table is also a part of what sees, and may stand there alone.
    """
    phi3 = make_tiny_family(tmp_path / "phi3", "phi4 mini")
    seeing = tmp_path / "seeing"
    shutil.copytree(phi3, seeing)
    tensors = load_file(phi3 / "model.safetensors")
    tensors |= {
        "model.vision_embed_tokens.glb_GN": torch.zeros(1, 1, 256),
        "model.vision_embed_tokens.img_processor.vision_model.embeddings.class_embedding": torch.zeros(32),
        "model.vision_embed_tokens.img_projection.0.weight": torch.zeros(64, 128),
    }
    if copied is not None:
        tensors["model.vision_embed_tokens.wte.weight"] = tensors["model.embed_tokens.weight"].clone()
    if copied == "alone":
        del tensors["model.embed_tokens.weight"]
    save_file(tensors, seeing / "model.safetensors", metadata={"format": "pt"})
    settings = read_json(phi3 / "config.json") | {"architectures": ["Phi3VForCausalLM"], "model_type": "phi3_v"}
    write_json(seeing / "config.json", settings)
    both = Lanes(load(phi3)), Lanes(load(seeing))
    found = [lanes.add(PROMPT) for lanes in both]
    for lanes, lane in zip(both, found, strict=True):
        lanes.greedy([lane], COUNT)
    assert found[0].ids == found[1].ids
    (warning,) = open_model(str(seeing)).warnings
    assert warning.startswith("config.json: Phi3VForCausalLM is computed for text alone")


def test_a_copy_of_the_table_that_differs_is_refused(tmp_path: Path) -> None:
    path = make_tiny_family(tmp_path / "phi3", "phi3")
    edit_json(path / "config.json", architectures=["Phi3VForCausalLM"])
    tensors = load_file(path / "model.safetensors")
    tensors["model.vision_embed_tokens.wte.weight"] = tensors["model.embed_tokens.weight"] + 1
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadModel, match=r"wte\.weight differs from model\.embed_tokens\.weight"):
        open_model(str(path))


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("gemma3", "model.visual.patch_embed.weight"),
        ("qwen2 vl", "vision_tower.patch_embed.weight"),
        ("mllama", "model.visual.patch_embed.weight"),
        ("llava", "model.image_newline"),
        ("phi3", "model.vision_embed_tokens.other.weight"),
        ("mllama", "model.language_model.layers.1.self_attn.q_proj.weight"),
    ],
)
def test_tensors_of_no_part_of_a_model_are_refused(name: str, other: str, tmp_path: Path) -> None:
    if name == "phi3":
        make_tiny_family(tmp_path, name)
        edit_json(tmp_path / "config.json", architectures=["Phi3VForCausalLM"])
    else:
        make(tmp_path, name)
    tensors = load_file(tmp_path / "model.safetensors") | {other: torch.zeros(4, 4)}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadModel, match=re.escape(other.removeprefix("model.language_model."))):
        open_model(str(tmp_path))


def test_classes_of_a_tower_are_not_compared_with_targets(tmp_path: Path) -> None:
    """Positions of a tower are of the class Embedding, so that no list of what is left out names them."""
    make(tmp_path / "source", "llava")
    packing, config = ALL["packed 4 bits"]
    tower = [name for name in load_file(tmp_path / "source" / "model.safetensors") if "language_model" not in name]
    linear = [name.removesuffix(".weight") for name in tower if re.search(r"(proj|fc\d|linear_\d)\.weight$", name)]
    assert any("position_embedding" in name for name in tower)

    def of_text(name: str, weight: torch.Tensor) -> Packed | None:
        return packing(weight) if "language_model" in name else None

    config = {**config, "ignore": ["re:.*lm_head", *linear]}
    path, plain = write_by_name(tmp_path / "made", tmp_path / "source", of_text, config)
    weights, expected = (
        load_weights(open_model(str(each)), torch.float32, CPU, lambda *_: None) for each in (path, plain)
    )
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], value) for name, value in expected.items())


def test_an_install_says_that_images_are_not_served(tmp_path: Path) -> None:
    make(tmp_path, "llava")
    (warning,) = open_model(str(tmp_path)).warnings
    assert warning.startswith("config.json: LlavaForConditionalGeneration is computed for text alone")


def test_files_of_qwen2_vl_as_published_are_the_same(tmp_path: Path) -> None:
    """The settings of text stand beside the others, and its tensors have the names of Qwen2."""
    make(tmp_path, "qwen2 vl")
    expected = Lanes(load(tmp_path))
    whole = read_json(tmp_path / "config.json")
    text = whole.pop("text_config")
    rope = {"rope_theta": 1e4, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}
    del text["rope_parameters"]
    write_json(tmp_path / "config.json", {**text, **rope, **whole})
    names = {"model.language_model.": "model.", "model.visual.": "visual."}
    tensors = load_file(tmp_path / "model.safetensors")
    for old, new in names.items():
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    published = Lanes(load(tmp_path))
    found = [lanes.add(PROMPT) for lanes in (expected, published)]
    for lanes, lane in zip((expected, published), found, strict=True):
        lanes.greedy([lane], COUNT)
    assert found[0].ids == found[1].ids


def test_experts_of_qwen3_vl_as_published_are_the_same(tmp_path: Path) -> None:
    """Inputs stand before outputs, as transformers 4 has them."""
    make(tmp_path, "qwen3 vl moe")
    expected = Lanes(load(tmp_path))
    tensors = load_file(tmp_path / "model.safetensors")
    turned = {name: each.transpose(1, 2).contiguous() for name, each in tensors.items() if ".experts." in name}
    assert len(turned) == 4
    save_file({**tensors, **turned}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    published = Lanes(load(tmp_path))
    found = [lanes.add(PROMPT) for lanes in (expected, published)]
    for lanes, lane in zip((expected, published), found, strict=True):
        lanes.greedy([lane], COUNT)
    assert found[0].ids == found[1].ids


def test_experts_of_another_shape_are_refused(tmp_path: Path) -> None:
    make(tmp_path, "qwen3 vl moe")
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.language_model.layers.0.mlp.experts.down_proj"
    tensors[name] = tensors[name].transpose(1, 2).contiguous()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadModel, match=r"experts\.down_proj is \[4, 40, 64\], but config\.json describes"):
        open_model(str(tmp_path))


@pytest.mark.parametrize(
    ("layers", "words"),
    [([5], "must list layers from 0 to 4"), ([0, 1, 2, 3, 4], "leaves no layer that attends to text")],
)
def test_wrong_layers_of_images_are_refused(layers: list[int], words: str, tmp_path: Path) -> None:
    make(tmp_path, "mllama")
    whole = read_json(tmp_path / "config.json")
    whole["text_config"]["cross_attention_layers"] = layers
    write_json(tmp_path / "config.json", whole)
    with pytest.raises(BadModel, match=f"text_config.cross_attention_layers = .* {words}"):
        open_model(str(tmp_path))


def test_a_tensor_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    make(tmp_path, "llava")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(64)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadModel, match=r"is there twice: model\.norm\.weight is the same"):
        open_model(str(tmp_path))


@pytest.mark.parametrize(
    ("architecture", "kind", "words"),
    [
        ("LlavaForConditionalGeneration", "mixtral", "text_config.model_type = 'mixtral' is not supported; supported"),
        ("Gemma3ForConditionalGeneration", "llama", "text_config.model_type = 'llama' is not supported; supported are"),
    ],
)
def test_other_decoders_are_refused(architecture: str, kind: str, words: str) -> None:
    assert words in refusal(architecture, text_config={**config(), "model_type": kind})


def test_what_a_text_part_does_not_compute_is_named() -> None:
    text = {**config(), "model_type": "gemma3_text", "attn_logit_softcapping": 50.0}
    message = refusal("Gemma3ForConditionalGeneration", text_config=text)
    assert "config.json: text_config.attn_logit_softcapping = 50.0" in message
