"""What an install reads, and what InspectModel tells."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from headrace_engine.config import ModelFormat, RopeScaling, RopeScalingType, RuntimeConfig
from headrace_engine.engine.config.options import EngineOptions
from headrace_engine.engine.models.inspection import describe
from headrace_engine.engine.models.opening import check_model
from headrace_engine.engine.models.prepare import Prepared, prepare
from headrace_engine.errors import BadModel, HeadraceError, InvalidArgument
from headrace_engine.model_types import ModelDescription
from support.engine.rig import Rig
from support.models.json_files import read_json, write_json
from support.models.tiny_models import make_tiny_family

OFFLINE = EngineOptions(allow_hub=False)


@pytest.fixture
def copy(model_path: Path, tmp_path: Path) -> Path:
    """The tiny model, to be changed."""
    return Path(shutil.copytree(model_path, tmp_path / "copy"))


def prepared(path: Path | str, **changes: Any) -> Prepared:
    return prepare(RuntimeConfig(**{"model_name": "smol", "model_path": str(path), **changes}), OFFLINE)


def refused(path: Path | str, kind: type[HeadraceError], **changes: Any) -> HeadraceError:
    with pytest.raises(kind) as caught:
        prepared(path, **changes)
    return caught.value


def described(path: Path | str) -> ModelDescription:
    return describe(RuntimeConfig(model_path=str(path)), OFFLINE)


def set_generation(path: Path, **values: Any) -> None:
    write_json(path / "generation_config.json", {**read_json(path / "generation_config.json"), **values})


class TestPrepare:
    def test_the_effective_config_shows_what_was_found(self, model_path: Path) -> None:
        effective = prepared(model_path).effective
        assert (effective.config.format, effective.config.max_batch) == (ModelFormat.HF, 32)
        assert effective.config.model_path == str(model_path)
        assert (effective.vocab_size, effective.model_max_length) == (384, 512)
        assert effective.weight_bytes > 0
        assert effective.resolved_revision
        assert (effective.kv_bytes, effective.workspace_bytes, effective.devices) == (0, 0, ())
        assert effective.warnings == ()

    def test_bc049_the_defaults_of_the_model_s_files_are_shown(self, copy: Path) -> None:
        set_generation(copy, temperature=0.1, top_k=20)
        defaults = prepared(copy).effective.generation_defaults
        assert (defaults.temperature, defaults.top_k, defaults.top_p, defaults.do_sample) == (0.1, 20, 1.0, True)
        assert (defaults.max_length, defaults.seed) == (None, None)
        assert defaults.eos_token_id == (2, 0)

    def test_bc049_without_a_file_the_built_in_defaults_hold(self, copy: Path) -> None:
        (copy / "generation_config.json").unlink()
        defaults = prepared(copy).effective.generation_defaults
        assert (defaults.temperature, defaults.eos_token_id) == (1.0, (2,))

    def test_bc050_a_malformed_file_is_an_error_that_names_the_field(self, copy: Path) -> None:
        set_generation(copy, temperature="hot")
        assert "temperature = 'hot'" in refused(copy, BadModel).message

    def test_defaults_about_ids_outside_the_model_are_refused(self, copy: Path) -> None:
        set_generation(copy, allowed_token_ids=[384])
        with pytest.raises(BadModel, match="allowed_token_ids holds 384"):
            prepared(copy)

    def test_what_of_the_files_is_not_applied_is_a_warning(self, copy: Path) -> None:
        set_generation(copy, typical_p=0.9)
        found = prepared(copy)
        assert [warning.field for warning in found.effective.warnings] == ["config.typical_p"]
        assert found.not_applied == found.effective.warnings

    @pytest.mark.parametrize("allow_hub", [True, False])
    @pytest.mark.parametrize("path", ["/" + "z" * 300, "/a" * 3000])
    def test_a_path_that_no_file_system_takes_is_refused(self, path: str, allow_hub: bool) -> None:
        options, config = EngineOptions(allow_hub=allow_hub), RuntimeConfig(model_name="smol", model_path=path)
        for read in (prepare, check_model, describe):
            with pytest.raises(BadModel, match="File name too long"):
                read(config, options)

    def test_so_is_a_prefix_of_file_names(self, copy: Path) -> None:
        assert "File name too long" in refused(copy, BadModel, file_prefix="z" * 300).message

    @pytest.mark.parametrize(("max_length", "shown"), [(None, 512), (512, 512), (100, 100)])
    def test_the_longest_sequence_is_as_configured_or_the_models(
        self, model_path: Path, max_length: int | None, shown: int
    ) -> None:
        assert prepared(model_path, max_length=max_length).max_length == shown

    def test_more_than_the_model_was_made_for_is_refused(self, model_path: Path) -> None:
        error = refused(model_path, InvalidArgument, max_length=513)
        assert "max_length = 513 exceeds the model's maximum of 512 tokens" in error.message
        assert "rope_scaling" in error.message

    def test_no_scaling_is_proposed_where_none_is_taken(self, tmp_path: Path) -> None:
        path = make_tiny_family(tmp_path / "model", "deepseek2")
        error = refused(path, InvalidArgument, max_length=10**6)
        assert "max_length = 1000000 exceeds the model's maximum of" in error.message
        assert error.message.endswith(" tokens")
        scaling = RopeScaling(RopeScalingType.YARN, factor=80.0)
        assert "mscale_all_dim = " in refused(path, InvalidArgument, rope_scaling=scaling).message

    def test_rope_scaling_stretches_it_as_far_as_its_factor(self, model_path: Path) -> None:
        scaling = RopeScaling(RopeScalingType.LINEAR, factor=2.0)
        found = prepared(model_path, max_length=1024, rope_scaling=scaling)
        assert (found.max_length, found.effective.model_max_length) == (1024, 1024)
        assert prepared(model_path, rope_scaling=scaling).max_length == 1024
        refused(model_path, InvalidArgument, max_length=1025, rope_scaling=scaling)

    def test_so_it_does_before_a_declared_model_is_installed(self, model_path: Path) -> None:
        scaling = RopeScaling(RopeScalingType.LINEAR, factor=2.0)
        config = RuntimeConfig("smol", str(model_path), max_length=1024, rope_scaling=scaling)
        check_model(config, OFFLINE)
        with pytest.raises(InvalidArgument, match="max_length = 1025"):
            check_model(replace(config, max_length=1025), OFFLINE)

    def test_the_model_s_own_scaling_stretches_nothing(self, model_path: Path) -> None:
        scaling = RopeScaling(RopeScalingType.MODEL)
        refused(model_path, InvalidArgument, max_length=513, rope_scaling=scaling)

    def test_a_broken_template_of_the_config_is_told_at_the_install(self, model_path: Path) -> None:
        error = refused(model_path, InvalidArgument, chat_template="{% for %}")
        assert (error.reason, error.violations[0].field) == ("BAD_TEMPLATE", "config.chat_template")

    def test_bc067_a_broken_template_does_not_hinder_the_install(self, copy: Path) -> None:
        config = read_json(copy / "tokenizer_config.json")
        write_json(copy / "tokenizer_config.json", {**config, "chat_template": "{% for %}"})
        prepared(copy)

    def test_a_missing_path_is_told_without_asking_a_hub(self) -> None:
        assert "owner/model" in refused("owner/model", BadModel).message

    def test_a_hub_is_refused_where_none_is_used(self, model_path: Path) -> None:
        error = refused(model_path, InvalidArgument, hub="https://hub.example")
        assert error.violations[0].field == "config.hub"

    def test_a_path_outside_the_roots_is_refused_with_a_kept_config(self, model_path: Path) -> None:
        config = RuntimeConfig(model_name="smol", model_path=str(model_path))
        with pytest.raises(InvalidArgument, match="outside"):
            prepare(config, EngineOptions(model_roots=(model_path / "elsewhere",)))


class TestDescribe:
    def test_tells_what_lies_at_a_path(self, model_path: Path) -> None:
        found = described(model_path)
        assert (found.format, found.architecture) == (ModelFormat.HF, "LlamaForCausalLM")
        assert json.loads(found.config_json)["hidden_size"] == 64
        assert (found.max_length, found.vocab_size) == (512, 384)
        assert found.num_parameters * 4 == found.weight_bytes
        assert found.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4  # keys and values, layers, KV heads, head, float32
        assert found.generation_config.eos_token_id == (2, 0)
        assert found.chat_template is not None
        assert found.refusal is None

    @pytest.mark.parametrize(
        ("file", "content"),
        [("tokenizer.json", "{"), ("generation_config.json", '{"temperature": -1}')],
    )
    def test_tells_why_an_install_would_be_refused(self, copy: Path, file: str, content: str) -> None:
        (copy / file).write_text(content, encoding="utf-8")
        found = described(copy)
        assert isinstance(found.refusal, BadModel)
        assert found.vocab_size == 384
        assert refused(copy, BadModel).message == found.refusal.message

    def test_nothing_to_describe_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(BadModel):
            described(tmp_path)

    async def test_the_engine_names_its_own_fields(self, rig: Rig) -> None:
        for path in ("", str(rig.model_path.parent)):
            rig.new_engine(model_roots=(rig.model_path,))
            with pytest.raises(InvalidArgument) as caught:
                await rig.engine.inspect_model(path)
            assert caught.value.violations[0].field == "model_path"
        with pytest.raises(InvalidArgument) as caught:
            await rig.engine.inspect_model(str(rig.model_path), revision="main")
        assert caught.value.violations[0].field == "revision"

    async def test_inspecting_installs_nothing(self, rig: Rig) -> None:
        assert (await rig.engine.inspect_model(str(rig.model_path))).vocab_size == 384
        assert rig.engine.list_models() == []
