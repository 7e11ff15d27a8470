"""Configs of installs under the names of other systems."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers
from headrace import InvalidRequestError, huggingface
from headrace._values import calls
from headrace._values.builders import ConfigBuilder
from headrace.allspark import AsCacheMode, ASGenerationConfigBuilder, AsModelRuntimeConfigBuilder, TargetDevice
from headrace_proto.v1 import runtime_pb2


class TestHuggingFace:
    @pytest.fixture(autouse=True)
    def quiet(self) -> Iterator[None]:
        """Without transformers' advice about fields that it would not use."""
        before = transformers.logging.get_verbosity()
        transformers.logging.set_verbosity_error()
        yield
        transformers.logging.set_verbosity(before)

    def built(self, **fields: Any) -> dict[str, Any]:
        return ASGenerationConfigBuilder(transformers.GenerationConfig(**fields)).build()

    def test_a_config_that_says_nothing_sets_nothing(self) -> None:
        assert self.built() == {}

    def test_what_it_says_is_taken(self) -> None:
        same = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05}
        lengths = {"max_length": 100, "max_new_tokens": 10, "min_length": 3, "min_new_tokens": 2}
        built = self.built(**same, **lengths, eos_token_id=[2, 7], no_repeat_ngram_size=3, bad_words_ids=[[5]])
        assert built == {**same, **lengths, "eos_token_id": [2, 7], "no_repeat_ngram_size": 3, "bad_words_ids": [[5]]}

    def test_other_names_are_translated(self) -> None:
        built = self.built(
            num_return_sequences=2, do_sample=True, stop_strings="end", max_time=2.5, eos_token_id=2,
            suppress_tokens=[8, 9], bad_words_ids=[[5, 6]],
        )  # fmt: skip
        assert built["stop_words"] == ["end"]
        assert (built["n"], built["deadline"], built["eos_token_id"]) == (2, 2.5, [2])
        assert built["bad_words_ids"] == [[5, 6], [8], [9]]

    def test_what_speaks_of_beams_is_taken_with_beams_only(self) -> None:
        assert self.built(early_stopping=True, length_penalty=0.5) == {}
        assert self.built(num_beams=4, length_penalty=0.5, early_stopping=True) == {
            "num_beams": 4,
            "length_penalty": 0.5,
            "beam_stopping": "FIRST",
        }

    @pytest.mark.parametrize(("theirs", "ours"), [(False, "HEURISTIC"), (True, "FIRST"), ("never", "NEVER")])
    def test_early_stopping_of_beams_has_another_name(self, theirs: object, ours: str) -> None:
        assert self.built(num_beams=2, early_stopping=theirs)["beam_stopping"] == ours

    def test_what_changes_beams_otherwise_is_refused(self) -> None:
        assert self.built(renormalize_logits=True) == {}
        with pytest.raises(InvalidRequestError, match="renormalize_logits = True"):
            self.built(renormalize_logits=True, num_beams=2)

    def test_arguments_beside_it_win_for_the_seed_and_lose_for_eos(self) -> None:
        config = transformers.GenerationConfig(eos_token_id=2)
        assert ASGenerationConfigBuilder(config, seed=3, eos_token_id=9).build() == {"eos_token_id": [2], "seed": 3}
        assert ASGenerationConfigBuilder(transformers.GenerationConfig(), eos_token_id=9).build() == {
            "eos_token_id": [9]
        }

    @pytest.mark.parametrize(
        ("name", "value"),
        [("guidance_scale", 1.5), ("typical_p", 0.9), ("forced_eos_token_id", 2), ("sequence_bias", {(1,): 2.0})],
    )
    def test_what_has_no_counterpart_is_refused_by_name(self, name: str, value: object) -> None:
        with pytest.raises(InvalidRequestError, match=name) as caught:
            self.built(**{name: value})
        assert caught.value.reason == "NOT_SUPPORTED"

    def test_how_it_computes_does_not_matter(self) -> None:
        assert self.built(use_cache=False, pad_token_id=0, bos_token_id=1, output_scores=True) == {}

    def test_every_field_of_transformers_is_known(self) -> None:
        """So that a new one is looked at, and not refused as a misspelling."""
        assert transformers.GenerationConfig().to_dict().keys() <= set(huggingface.KNOWN)

    def test_a_file_s_contents_are_taken_too(self, tmp_path: Path) -> None:
        transformers.GenerationConfig(do_sample=True, top_k=3, eos_token_id=2).save_pretrained(tmp_path)
        raw = json.loads((tmp_path / "generation_config.json").read_text())
        assert ASGenerationConfigBuilder(raw).build() == {"do_sample": True, "top_k": 3, "eos_token_id": [2]}

    def test_a_misspelled_field_and_no_config_at_all_are_refused(self) -> None:
        with pytest.raises(TypeError, match="did you mean top_k"):
            ASGenerationConfigBuilder({"top_kk": 1})
        with pytest.raises(TypeError, match="expected a Hugging Face GenerationConfig"):
            ASGenerationConfigBuilder(5)  # type: ignore[arg-type]


def installed(builder: ConfigBuilder) -> runtime_pb2.RuntimeConfig:
    fields = builder.build()
    name, path = fields.pop("name"), fields.pop("path")
    return calls.install_model(name, path, engine_ids=(), no_wait=False, fields=fields).config


class TestRuntime:
    def test_the_documented_example(self) -> None:
        builder = AsModelRuntimeConfigBuilder()
        builder.model_name("my_model")
        builder.model_dir("/path/to/model", "model_prefix")
        builder.compute_unit(TargetDevice.CUDA, [0])
        builder.max_batch(32)
        builder.max_length(2048)
        builder.kv_cache_mode(AsCacheMode.AsCacheQuantU4)
        config = installed(builder)
        assert (config.model_name, config.model_path, config.file_prefix) == (
            "my_model",
            "/path/to/model",
            "model_prefix",
        )
        assert (config.compute_unit, list(config.device_list)) == (runtime_pb2.COMPUTE_UNIT_CUDA, [0])
        assert (config.max_batch, config.max_length) == (32, 2048)
        assert config.kv_cache_mode == runtime_pb2.KV_CACHE_MODE_UINT4

    def test_its_names_in_a_dict(self) -> None:
        config = installed(
            AsModelRuntimeConfigBuilder().update({
                "model_name": "m", "model_path": "p", "engine_max_batch": 4, "engine_max_length": 128,
                "kv_cache_mode": "AsCacheQuantI8", "kv_cache_span_size": 32, "prefix_cache_ttl": 300,
                "enable_prefix_cache": False,
            })
        )  # fmt: skip
        assert (config.max_batch, config.max_length, config.block_size) == (4, 128, 32)
        assert (config.kv_cache_mode, config.prefix_cache_ttl.seconds) == (runtime_pb2.KV_CACHE_MODE_INT8, 300)
        assert config.enable_prefix_cache is False

    def test_a_device_as_a_string(self) -> None:
        builder = AsModelRuntimeConfigBuilder().model_name("m").model_path("p")
        config = installed(builder.set_compute_unit_from_str("CUDA:0,1"))
        assert (config.compute_unit, list(config.device_list)) == (runtime_pb2.COMPUTE_UNIT_CUDA, [0, 1])
        assert installed(builder.compute_unit("cpu", (), 4)).num_threads == 4
        with pytest.raises(InvalidRequestError, match="compute_unit"):
            builder.set_compute_unit_from_str("CUDA:first")

    def test_a_name_that_is_none_is_an_error_with_the_nearest_one(self) -> None:
        with pytest.raises(TypeError, match="did you mean engine_max_batch"):
            AsModelRuntimeConfigBuilder().update({"engine_maxbatch": 4})

    def test_a_switch_may_be_called_otherwise_there(self) -> None:
        assert AsModelRuntimeConfigBuilder().prefill_cache().build() == {"enable_prefix_cache": True}
        assert AsModelRuntimeConfigBuilder().prefill_cache(False).build() == {"enable_prefix_cache": False}
