"""Opening Hugging Face directories: what is whole opens, what is damaged is refused by name before a weight is read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from headrace_engine.config import ModelFormat
from headrace_engine.errors import BadModel, InvalidArgument
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.tokenizer import load_tokenizer
from support.models.damage import edit_json, refusal, rename_tensor
from support.models.tiny_models import make_tiny_family
from unit.models.conftest import Copy

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def test_whole_directory_tells_sizes_ids_and_template(llama: Path) -> None:
    files = open_model(str(llama))
    assert files.format is ModelFormat.HF
    assert files.spec.architecture == "LlamaForCausalLM"
    assert files.num_parameters == sum(p.stored.elements for p in files.tensors.values()) == 123_200
    assert files.weight_bytes == 4 * 123_200
    assert files.bytes_per_value == 4
    assert files.eos_ids == (2, 0)
    assert files.bos_id == 1
    assert "<|im_start|>" in (files.chat_template or "")
    assert files.warnings == ()
    assert files.tensors["layers.1.k"].shape == (32, 64)


def test_the_path_to_open_again_gives_the_same_model(llama: Path, sharded: Path, llama_gguf: Path) -> None:
    for path in (llama, llama / WEIGHTS, sharded, llama_gguf, llama_gguf.parent):
        files = open_model(str(path))
        assert open_model(str(files.path), format=files.format) == files


def test_shards_hold_what_the_single_file_holds(llama: Path, sharded: Path) -> None:
    whole, parts = open_model(str(llama)), open_model(str(sharded))
    assert whole.tensors.keys() == parts.tensors.keys()
    assert len({info.stored.file for info in parts.tensors.values()}) > 1


def test_revision_follows_the_files(copy: Copy, llama: Path) -> None:
    path = copy(llama)
    before = open_model(str(path)).revision
    assert before == open_model(str(llama)).revision
    edit_json(path / "config.json", rms_norm_eps=1e-5)
    assert open_model(str(path)).revision != before


def test_revision_is_the_commit_of_a_cached_snapshot(tmp_path: Path, llama: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    shutil.copytree(llama, tmp_path / "snapshots" / commit)
    assert open_model(str(tmp_path / "snapshots" / commit)).revision == commit


class TestMismatch:
    def test_bc135_a_config_of_another_size_is_refused_with_shapes(self, copy: Copy, llama: Path) -> None:
        path = copy(llama)
        edit_json(path / "config.json", hidden_size=128, head_dim=32)
        message = refusal(path)
        assert WEIGHTS in message
        assert "[384, 64]" in message
        assert "[384, 128]" in message
        assert "LlamaForCausalLM" in message

    def test_bc135_a_config_of_another_vocabulary_is_refused(self, copy: Copy, llama: Path) -> None:
        path = copy(llama)
        edit_json(path / "config.json", vocab_size=512)
        message = refusal(path)
        assert "[384, 64]" in message
        assert "[512, 64]" in message

    def test_bc135_config_of_another_architecture_is_refused(self, copy: Copy, llama: Path, qwen2: Path) -> None:
        path = copy(qwen2)
        shutil.copy(llama / "config.json", path)
        message = refusal(path)
        assert "LlamaForCausalLM" in message
        assert "q_proj.bias" in message

    def test_bc135_config_that_needs_more_tensors_is_refused(self, copy: Copy, llama: Path, qwen2: Path) -> None:
        path = copy(llama)
        shutil.copy(qwen2 / "config.json", path)
        message = refusal(path)
        assert "Qwen2ForCausalLM" in message
        assert "model.layers.0.self_attn.q_proj.bias" in message
        assert "absent" in message

    @pytest.mark.parametrize("layers", [1, 3])
    def test_bc135_another_number_of_layers_is_refused(self, copy: Copy, llama: Path, layers: int) -> None:
        path = copy(llama)
        edit_json(path / "config.json", num_hidden_layers=layers)
        assert f"model.layers.{min(layers, 2)}." in refusal(path)

    def test_bc135_unknown_architecture_lists_the_nearest_ones(self, copy: Copy, llama: Path) -> None:
        path = copy(llama)
        edit_json(path / "config.json", architectures=["DeepseekV32ForCausalLM"])
        message = refusal(path)
        assert "'DeepseekV32ForCausalLM' is not supported; supported are DeepseekV3ForCausalLM, " in message
        assert message.endswith(" more, which docs/models.md lists")
        edit_json(path / "config.json", architectures=["L" * 10_000])
        assert len(refusal(path)) < 640

    def test_an_unexpected_tensor_is_refused_by_name_and_file(self, copy: Copy, llama: Path) -> None:
        path = copy(llama)
        with_extra(path / WEIGHTS, "model.layers.0.self_attn.q_norm.weight")
        message = refusal(path)
        assert f"{WEIGHTS}: " in message
        assert "model.layers.0.self_attn.q_norm.weight" in message

    def test_a_derived_buffer_is_left_out_with_a_warning(self, copy: Copy, llama: Path) -> None:
        path = copy(llama)
        name = "model.layers.0.self_attn.rotary_emb.inv_freq"
        with_extra(path / WEIGHTS, name)
        files = open_model(str(path))
        assert any(name in warning for warning in files.warnings)
        assert files.tensors.keys() == open_model(str(llama)).tensors.keys()

    def test_masks_of_gpt_neox_are_left_out_with_a_warning(self, tmp_path: Path) -> None:
        path = make_tiny_family(tmp_path, "neox")
        masks = [f"gpt_neox.layers.{layer}.attention.{kind}" for layer in range(2) for kind in ("bias", "masked_bias")]
        for name in masks:
            with_extra(path / WEIGHTS, name)
        (warning,) = open_model(str(path)).warnings
        assert all(name in warning for name in masks)


class TestGenerationConfig:
    def test_bc050_a_file_that_is_no_json_is_refused_by_name(self, copy: Copy, llama: Path) -> None:
        path = copy(llama)
        (path / "generation_config.json").write_text('{"temperature": ')
        assert "generation_config.json: not valid JSON" in refusal(path)

    @pytest.mark.parametrize("value", ["2", -1, 384, [2, "x"], True, 2.0])
    def test_bc050_a_wrong_eos_is_refused_by_field(self, copy: Copy, llama: Path, value: object) -> None:
        path = copy(llama)
        edit_json(path / "generation_config.json", eos_token_id=value)
        message = refusal(path)
        assert "generation_config.json: eos_token_id" in message
        assert repr(value) in message

    def test_bc050_a_field_that_stands_twice_is_refused(self, copy: Copy, llama: Path) -> None:
        path = copy(llama)
        (path / "generation_config.json").write_text('{"top_k": 1, "top_k": 2}')
        assert "'top_k' stands twice" in refusal(path)

    def test_without_the_file_the_config_names_eos(self, copy: Copy, llama: Path) -> None:
        path = copy(llama)
        (path / "generation_config.json").unlink()
        files = open_model(str(path))
        assert files.eos_ids == (2,)
        assert files.generation == {}

    def test_a_model_without_eos_opens(self, copy: Copy, llama: Path) -> None:
        """Whether its tokenizer names one is seen later."""
        path = copy(llama)
        (path / "generation_config.json").unlink()
        edit_json(path / "config.json", eos_token_id=None)
        assert open_model(str(path)).eos_ids == ()

    def test_a3_both_files_name_ends(self, copy: Copy, llama: Path) -> None:
        path = copy(llama)
        edit_json(path / "generation_config.json", eos_token_id=0)
        files = open_model(str(path))
        assert files.named_ends == {"generation_config.json": (0,), "config.json": (2,)}
        assert files.eos_ids == (0, 2)


class TestTiedHead:
    def test_bc113_tied_and_absent(self, tied: Path) -> None:
        files = open_model(str(tied))
        assert files.spec.tied_head
        assert "head" not in files.tensors

    def test_bc113_tied_and_stored_equal(self, copy: Copy, tied: Path) -> None:
        path = copy(tied)
        store_head(path / WEIGHTS, change=False)
        files = open_model(str(path))
        assert files.spec.tied_head
        assert "head" not in files.tensors
        assert files.warnings == ()

    def test_bc113_a_tied_but_different_head_is_used_with_a_warning(self, copy: Copy, tied: Path) -> None:
        path = copy(tied)
        store_head(path / WEIGHTS, change=True)
        files = open_model(str(path))
        assert not files.spec.tied_head
        assert files.tensors["head"].stored.name == "lm_head.weight"
        assert any("lm_head.weight differs" in warning for warning in files.warnings)

    def test_bc113_tied_and_only_the_head_stored(self, copy: Copy, tied: Path) -> None:
        path = copy(tied)
        rename_tensor(path / WEIGHTS, "model.embed_tokens.weight", "lm_head.weight")
        files = open_model(str(path))
        assert files.spec.tied_head
        assert files.tensors["embed"].shape == (384, 64)

    def test_bc113_not_tied_and_stored(self, llama: Path) -> None:
        files = open_model(str(llama))
        assert not files.spec.tied_head
        assert files.tensors["head"].stored.name == "lm_head.weight"

    def test_not_tied_and_absent_is_refused(self, copy: Copy, tied: Path) -> None:
        path = copy(tied)
        edit_json(path / "config.json", tie_word_embeddings=False)
        assert "lm_head.weight" in refusal(path)


class TestWhichFiles:
    def test_nothing_at_the_path_is_refused(self, tmp_path: Path) -> None:
        assert f"{tmp_path / 'absent'}: no such file or directory" in refusal(tmp_path / "absent")

    def test_a_directory_without_a_model_says_what_is_there(self, tmp_path: Path) -> None:
        (tmp_path / "readme.md").touch()
        message = refusal(tmp_path)
        assert "config.json" in message
        assert "readme.md" in message

    def test_a_config_without_weights_is_refused(self, copy: Copy, llama: Path) -> None:
        path = copy(llama)
        (path / WEIGHTS).unlink()
        assert "no safetensors files" in refusal(path)

    def test_file_prefix_chooses_among_several_models(self, copy: Copy, llama: Path) -> None:
        path = copy(llama)
        shutil.move(path / WEIGHTS, path / "small.safetensors")
        shutil.copy(path / "small.safetensors", path / "large.safetensors")
        message = refusal(path)
        assert "large.safetensors, small.safetensors" in message
        assert "file_prefix" in message
        files = open_model(str(path), file_prefix="sm")
        assert files.tensors["embed"].stored.file.name == "small.safetensors"
        assert "'tiny'" in refusal(path, file_prefix="tiny")

    def test_other_files_are_not_of_our_own_format(self, llama: Path) -> None:
        assert "no .asmodel file" in refusal(llama, format=ModelFormat.HEADRACE)
        assert "means a .asmodel file" in refusal(llama / "model.safetensors", format=ModelFormat.HEADRACE)

    @pytest.mark.parametrize("field", ["revision", "hub"])
    def test_hub_settings_do_not_apply_to_local_files(self, llama: Path, field: str) -> None:
        with pytest.raises(InvalidArgument) as caught:
            open_model(str(llama), **{field: "https://main"})  # type: ignore[arg-type]
        assert caught.value.violations[0].field == f"config.{field}"

    def test_format_hf_refuses_a_gguf_file(self, llama_gguf: Path) -> None:
        with pytest.raises(BadModel, match=r"config\.json"):
            open_model(str(llama_gguf), format=ModelFormat.HF)


class TestChatTemplate:
    def test_the_jinja_file_wins(self, copy: Copy, llama: Path) -> None:
        path = copy(llama)
        (path / "chat_template.jinja").write_text("from the file", encoding="utf-8")
        assert open_model(str(path)).chat_template == "from the file"

    def test_the_default_of_several_is_taken(self, copy: Copy, llama: Path) -> None:
        path = copy(llama)
        several = [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]
        edit_json(path / "tokenizer_config.json", chat_template=several)
        files = open_model(str(path))
        assert (files.chat_template, files.tool_template) == ("b", "a")
        assert load_tokenizer(files).tool_template == "a"

    def test_a_template_for_tools_may_lie_beside_the_jinja_file(self, copy: Copy, llama: Path) -> None:
        path = copy(llama)
        (path / "additional_chat_templates").mkdir()
        (path / "additional_chat_templates" / "tool_use.jinja").write_text("tools", encoding="utf-8")
        (path / "chat_template.jinja").write_text("all", encoding="utf-8")
        files = open_model(str(path))
        assert (files.chat_template, files.tool_template) == ("all", "tools")

    def test_a_template_that_is_no_text_is_refused(self, copy: Copy, llama: Path) -> None:
        path = copy(llama)
        edit_json(path / "tokenizer_config.json", chat_template=7)
        assert "tokenizer_config.json: chat_template" in refusal(path)


def with_extra(path: Path, name: str) -> None:
    """Adds a small tensor to a safetensors file."""
    import torch
    from safetensors.torch import load_file, save_file

    save_file({**load_file(path), name: torch.zeros(8)}, path)


def store_head(path: Path, *, change: bool) -> None:
    """Stores a head beside the embedding table, equal to it or not."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    head = tensors["model.embed_tokens.weight"].clone()
    if change:
        head[-1, -1] += 1
    save_file({**tensors, "lm_head.weight": head}, path)
