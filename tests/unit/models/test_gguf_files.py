"""Opening GGUF files: metadata becomes a decoder, and damage is refused with the file's name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from headrace_engine.config import ModelFormat, RopeScalingType
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.spec import LayerSpec
from support.models.damage import refusal
from support.models.tiny_gguf import write_gguf
from support.models.tiny_models import make_tiny_gguf, make_tiny_llama
from unit.models.conftest import Copy


def test_smollm2_opens_with_everything_its_metadata_says(smollm2: Path) -> None:
    files = open_model(str(smollm2.parent))
    assert files.path == smollm2
    assert files.format is ModelFormat.GGUF
    spec = files.spec
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (30, 9, 3, 64)
    assert (spec.vocab_size, spec.hidden_size, spec.intermediate_size) == (49152, 576, 1536)
    assert (spec.max_length, spec.ropes[0].theta, spec.tied_head) == (8192, 100_000.0, True)
    assert files.num_parameters == 134_515_008
    assert (files.eos_ids, files.bos_id) == ((2,), 1)
    assert files.warnings == ()
    assert (files.chat_template or "").startswith("{% for message in messages %}")
    assert json.loads(files.config_json)["tokenizer.ggml.tokens"] == "array of 49152"


def test_gguf_may_have_a_template_for_tools(tmp_path: Path, llama: Path) -> None:
    assert open_model(str(write_gguf(tmp_path / "plain.gguf", llama))).tool_template is None
    path = write_gguf(tmp_path / "tools.gguf", llama, metadata={"tokenizer.chat_template.tool_use": "tools"})
    assert open_model(str(path)).tool_template == "tools"


def test_gguf_of_a_directory_describes_the_same_decoder(llama: Path, llama_gguf: Path) -> None:
    original, converted = open_model(str(llama)).spec, open_model(str(llama_gguf)).spec
    assert converted.architecture == "llama"
    for field in ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "max_length"):
        assert getattr(converted, field) == getattr(original, field)
    assert converted.ropes == original.ropes
    assert not converted.tied_head


def test_biases_and_a_tied_head_show_in_the_tensors(tmp_path: Path, qwen2: Path, tied: Path) -> None:
    assert open_model(str(make_tiny_gguf(tmp_path / "qwen2.gguf", qwen2))).spec.qkv_bias
    assert open_model(str(make_tiny_gguf(tmp_path / "tied.gguf", tied))).spec.tied_head
    biased = make_tiny_llama(tmp_path / "biased", attention_bias=True, mlp_bias=True)
    spec = open_model(str(make_tiny_gguf(tmp_path / "biased.gguf", biased))).spec
    assert (spec.qkv_bias, spec.output_bias, spec.mlp_bias) == (True, True, True)


def test_rows_of_queries_and_keys_are_marked_for_reordering(tmp_path: Path, llama_gguf: Path, qwen2: Path) -> None:
    tensors = open_model(str(llama_gguf)).tensors
    heads = {name: tensors[f"layers.0.{name}"].interleaved_heads for name in ("q", "k", "v", "o", "gate")}
    assert heads == {"q": 4, "k": 2, "v": 0, "o": 0, "gate": 0}
    plain = open_model(str(make_tiny_gguf(tmp_path / "qwen2.gguf", qwen2))).tensors
    assert {info.interleaved_heads for info in plain.values()} == {0}


def test_the_files_recommended_sampling_is_its_generation_config(tmp_path: Path, llama: Path) -> None:
    metadata = {"general.sampling.temp": 0.25, "general.sampling.top_k": 20}
    files = open_model(str(write_gguf(tmp_path / "model.gguf", llama, metadata=metadata)))
    assert files.generation == {"temperature": 0.25, "top_k": 20}


def test_all_end_tokens_are_taken(tmp_path: Path, llama: Path) -> None:
    metadata = {"tokenizer.ggml.eot_token_id": 0, "tokenizer.ggml.eom_token_id": 2}
    assert open_model(str(write_gguf(tmp_path / "model.gguf", llama, metadata=metadata))).eos_ids == (2, 0)


class TestExtraTensors:
    def test_bc131_rope_freqs_are_honoured(self, tmp_path: Path, llama: Path) -> None:
        factors = np.array([1, 1, 2, 3, 4, 5, 6, 7.5], dtype=np.float32)
        path = write_gguf(tmp_path / "model.gguf", llama, extra_tensors={"rope_freqs.weight": factors})
        files = open_model(str(path))
        assert files.spec.ropes[0].frequency_factors == tuple(factors.tolist())
        assert files.warnings == ()

    def test_bc131_rope_freqs_of_a_llama3_model(self, tmp_path: Path) -> None:
        scaling = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0}
        scaling |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
        source = make_tiny_llama(tmp_path / "llama3", rope_parameters=scaling)
        factors = open_model(str(make_tiny_gguf(tmp_path / "model.gguf", source))).spec.ropes[0].frequency_factors
        assert factors[0] == 1
        assert factors[-1] == pytest.approx(8)
        assert open_model(str(source)).spec.ropes[0].scaling is RopeScalingType.LLAMA3

    @pytest.mark.parametrize("factors", [[1.0] * 7, [1.0] * 7 + [0.0], [1.0] * 7 + [float("nan")], [1.0] * 7 + [1e-37]])
    def test_bc131_wrong_rope_freqs_are_refused(self, tmp_path: Path, llama: Path, factors: list[float]) -> None:
        extra = {"rope_freqs.weight": np.array(factors, dtype=np.float32)}
        assert "rope_freqs.weight" in refusal(write_gguf(tmp_path / "model.gguf", llama, extra_tensors=extra))

    def test_bc131_an_unknown_extra_tensor_is_a_warning(self, tmp_path: Path, llama: Path) -> None:
        extra = {"novel_thing.weight": np.zeros(8, dtype=np.float32)}
        files = open_model(str(write_gguf(tmp_path / "model.gguf", llama, extra_tensors=extra)))
        assert any("novel_thing.weight" in warning for warning in files.warnings)
        assert files.num_parameters == 123_200

    @pytest.mark.parametrize("name", ["blk.0.attn_q_norm.weight", "blk.2.attn_norm.weight", "output.bias"])
    def test_an_extra_tensor_that_takes_part_is_refused(self, tmp_path: Path, llama: Path, name: str) -> None:
        extra = {name: np.zeros(64, dtype=np.float32)}
        assert name in refusal(write_gguf(tmp_path / "model.gguf", llama, extra_tensors=extra))


class TestMismatch:
    @pytest.mark.parametrize(
        ("metadata", "words"),
        [
            ({"llama.vocab_size": 512}, ["token_embd.weight", "[384, 64]", "[512, 64]"]),
            ({"llama.embedding_length": 128}, ["token_embd.weight", "[384, 64]", "[384, 128]"]),
            ({"llama.block_count": 3}, ["blk.2.attn_norm.weight", "absent"]),
            ({"llama.block_count": 1}, ["blk.1."]),
            ({"llama.attention.head_count_kv": 3}, ["attention.head_count_kv", "= 3"]),
            ({"llama.attention.value_length": 8}, ["attention.value_length"]),
            ({"llama.block_count": 10**9}, ["block_count"]),
            ({"llama.rope.scaling.type": "magic"}, ["rope.scaling.type", "magic"]),
            ({"llama.rope.scaling.type": "yarn"}, ["rope.scaling.factor"]),
            ({"llama.rope.scaling.type": "longrope"}, ["rope.scaling.type", "longrope"]),
            ({"llama.rope.scaling.type": "linear"}, ["rope.scaling.factor"]),
            ({"llama.rope.dimension_count": 8}, ["rope.dimension_count"]),
            ({"llama.expert_count": 8}, ["expert_used_count"]),
            (
                {"llama.expert_count": 8, "llama.expert_used_count": 2, "llama.expert_group_count": 4},
                ["expert_group_count = 4 is not supported for this architecture"],
            ),
            ({"llama.logit_scale": 2.0}, ["logit_scale"]),
            ({"general.architecture": "mamba"}, ["'mamba'", "llama", "qwen2"]),
            ({"split.count": 2}, ["split.count"]),
            ({"tokenizer.ggml.eos_token_id": 384}, ["eos_token_id", "384"]),
            ({"llama.context_length": "long"}, ["context_length", "'long'"]),
        ],
    )
    def test_bc135_metadata_and_tensors_must_fit(
        self, tmp_path: Path, llama: Path, metadata: dict[str, object], words: list[str]
    ) -> None:
        path = tmp_path / "model.gguf"
        architecture = metadata.pop("general.architecture", None)
        write_gguf(path, llama, metadata=metadata)
        if architecture is not None:
            content = path.read_bytes()
            path.write_bytes(content.replace(b"\5\0\0\0\0\0\0\0llama", b"\5\0\0\0\0\0\0\0mamba", 1))
        message = refusal(path)
        assert "model.gguf" in message
        for word in words:
            assert word in message

    def test_linear_scaling_is_read(self, tmp_path: Path, llama: Path) -> None:
        metadata = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
        rope = open_model(str(write_gguf(tmp_path / "model.gguf", llama, metadata=metadata))).spec.ropes[0]
        assert (rope.scaling, rope.factor) == (RopeScalingType.LINEAR, 4.0)

    def test_a_window_is_read(self, tmp_path: Path, llama: Path) -> None:
        metadata = {"llama.attention.sliding_window": 32}
        spec = open_model(str(write_gguf(tmp_path / "model.gguf", llama, metadata=metadata))).spec
        assert spec.layers == (LayerSpec(window=32),) * 2


class TestWhichFile:
    def test_several_files_need_a_prefix(self, tmp_path: Path, llama_gguf: Path) -> None:
        for name in ("small-q4.gguf", "small-q8.gguf"):
            shutil.copy(llama_gguf, tmp_path / name)
        message = refusal(tmp_path)
        assert "small-q4.gguf, small-q8.gguf" in message
        assert "file_prefix" in message
        assert open_model(str(tmp_path), file_prefix="small-q8").path.name == "small-q8.gguf"
        assert open_model(str(tmp_path), file_prefix="small-q8.gguf").path.name == "small-q8.gguf"
        assert "more than one GGUF file that begins with 'small'" in refusal(tmp_path, file_prefix="small")
        assert "no GGUF file that begins with 'big'" in refusal(tmp_path, file_prefix="big")

    def test_a_name_that_is_the_beginning_of_another_can_be_chosen(self, tmp_path: Path, llama_gguf: Path) -> None:
        for name in ("tiny.gguf", "tiny-long.gguf"):
            shutil.copy(llama_gguf, tmp_path / name)
        assert open_model(str(tmp_path), file_prefix="tiny").path.name == "tiny.gguf"

    def test_beside_safetensors_the_format_or_prefix_decides(self, copy: Copy, llama: Path, llama_gguf: Path) -> None:
        path = copy(llama)
        shutil.copy(llama_gguf, path / "quantised.gguf")
        assert open_model(str(path)).format is ModelFormat.HF
        assert open_model(str(path), format=ModelFormat.GGUF).format is ModelFormat.GGUF
        assert open_model(str(path), file_prefix="quant").format is ModelFormat.GGUF

    def test_a_config_beside_nothing_but_a_gguf_file_does_not_matter(
        self, copy: Copy, llama: Path, llama_gguf: Path
    ) -> None:
        path = copy(llama)
        (path / "model.safetensors").unlink()
        shutil.copy(llama_gguf, path)
        assert open_model(str(path)).format is ModelFormat.GGUF

    def test_a_prefix_that_does_not_fit_the_file_is_refused(self, llama_gguf: Path) -> None:
        assert "'other'" in refusal(llama_gguf, file_prefix="other")
