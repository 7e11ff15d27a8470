"""EXAONE 3, InternLM2 and XVERSE, which transformers runs by code of the model alone: Llamas with other names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import gguf
import pytest
import torch
from headrace_engine.config import ComputeDtype
from headrace_engine.errors import BadModel
from headrace_engine.models.catalogue import open_model
from safetensors.torch import load_file, save_file
from support.backends.cpu_sequences import CpuLanes, cpu_model
from support.backends.torch_sequences import Lanes, load, random_ids, reference
from support.models.json_files import read_json, write_json
from support.models.tiny_gguf import ARCHITECTURES, write_gguf
from support.models.tiny_models import make_tiny_llama

COUNT = 12
PROMPT = random_ids(37, seed=3)
NAMES = {
    "model.embed_tokens.": "transformer.wte.",
    "model.norm.": "transformer.ln_f.",
    "model.layers.": "transformer.h.",
    "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2",
    "self_attn.o_proj": "self_attn.out_proj",
    "self_attn.": "attn.attention.",
    "gate_proj": "c_fc_0",
    "up_proj": "c_fc_1",
    "down_proj": "c_proj",
}
FIELDS = {"num_hidden_layers": "num_layers", "rms_norm_eps": "layer_norm_epsilon", "hidden_act": "activation_function"}
ROPE = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip


INTERNLM2 = {
    "model.embed_tokens.": "model.tok_embeddings.",
    "lm_head.": "output.",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
}


def renamed(name: str, names: Mapping[str, str] = NAMES) -> str:
    for old, new in names.items():
        name = name.replace(old, new)
    return name


def joined(tensors: Mapping[str, torch.Tensor], kv_heads: int) -> dict[str, torch.Tensor]:
    """Return tensors with queries, keys and values as InternLM2's files have them: by heads of keys."""
    others = {name: tensor for name, tensor in tensors.items() if not re.search(r"\.[qkv]_proj", name)}
    for name in [name for name in tensors if ".q_proj" in name]:
        parts = [tensors[name.replace(".q_proj", f".{part}_proj")].unflatten(0, (kv_heads, -1)) for part in "qkv"]
        others[name.replace("self_attn.q_proj", "attention.wqkv")] = torch.cat(parts, 1).flatten(0, 1).contiguous()
    return others


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("llama"), rope_parameters=ROPE)


@pytest.fixture
def exaone(llama: Path, tmp_path: Path) -> Path:
    """The same weights as EXAONE's files have them."""
    for file in llama.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(llama / "model.safetensors")
    save_file({renamed(name): tensor for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    config = {FIELDS.get(name, name): value for name, value in read_json(llama / "config.json").items()}
    config |= {"architectures": ["ExaoneForCausalLM"], "model_type": "exaone"}
    write_json(tmp_path / "config.json", config)
    return tmp_path


@pytest.fixture
def internlm2(llama: Path, tmp_path: Path) -> Path:
    """The same weights as InternLM2's files have them."""
    for file in llama.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = read_json(llama / "config.json")
    tensors = joined(load_file(llama / "model.safetensors"), config["num_key_value_heads"])
    save_file({renamed(name, INTERNLM2): tensor for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    write_json(tmp_path / "config.json", config | {"architectures": ["InternLM2ForCausalLM"], "bias": False})
    return tmp_path


@pytest.fixture
def xverse(llama: Path, tmp_path: Path) -> Path:
    for file in llama.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = read_json(llama / "config.json") | {"architectures": ["XverseForCausalLM"]}
    write_json(tmp_path / "config.json", config)
    return tmp_path


@pytest.mark.parametrize("name", ["exaone", "internlm2", "xverse"])
def test_ids_are_those_of_the_same_llama(name: str, llama: Path, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(name)
    ids = reference(llama).generate(torch.tensor([PROMPT]), max_new_tokens=COUNT, do_sample=False, eos_token_id=None)
    with cpu_model(path, dtype=ComputeDtype.FLOAT32) as loaded:
        for lanes in (Lanes(load(path)), CpuLanes(loaded)):
            lane = lanes.add(PROMPT, new_tokens=COUNT)
            lanes.greedy([lane], COUNT, chunk=9)
            assert lane.ids[: ids.shape[1]] == ids[0].tolist()


@pytest.mark.parametrize("architecture", ["exaone", "internlm2"])
def test_gguf_files_say_the_same(
    architecture: str, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As converters write them; rows of InternLM2 are permuted as Llama's, those of EXAONE are not."""
    monkeypatch.setitem(ARCHITECTURES, "llama", architecture)
    path = write_gguf(tmp_path / "tiny.gguf", llama)
    assert gguf.GGUFReader(path).get_field("general.architecture").contents() == architecture
    both = Lanes(load(llama)), Lanes(load(path))
    found = [lanes.add(PROMPT) for lanes in both]
    for lanes, lane in zip(both, found, strict=True):
        lanes.greedy([lane], COUNT)
    assert found[0].ids == found[1].ids


def test_projections_that_are_absent_have_their_names_in_files(internlm2: Path) -> None:
    name = "model.layers.1.attention.wqkv.weight"
    tensors = load_file(internlm2 / "model.safetensors")
    del tensors[name]
    save_file(tensors, internlm2 / "model.safetensors")
    with pytest.raises(BadModel) as caught:
        open_model(str(internlm2))
    assert f"1 tensor(s) that InternLM2ForCausalLM of config.json needs are absent: {name}" in caught.value.message
