"""DashInfer's runtime configs: setters, dicts, YAML and attributes."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
from headrace import InvalidRequestError
from headrace.allspark import AsModelConfig, AsModelRuntimeConfigBuilder, TargetDevice
from headrace.allspark.di_config import read_config

SECTION: dict[str, Any] = {
    "model_name": "qwen", "engine_max_length": 4096, "engine_max_batch": 8,
    "compute_unit": {"device_type": "CPU", "device_ids": [0], "compute_thread_in_device": 4},
    "matmul_precision": "highest", "eviction_strategy": "MaxLength", "lora_names": [], "enable_sparsity_matmul": False,
    "kv_cache_mode": "AsCacheQuantI8", "kv_cache_span_size": 32, "enable_prefix_cache": True, "prefix_cache_ttl": 300,
    "engine_max_prefill_length": 0, "cuda_mem": {"memory_ratio": 0.8, "reserve_size_mb": -1},
    "rope_scaling": {"type": "linear", "factor": 2.0},
}  # fmt: skip

BUILT = {
    "name": "qwen", "max_length": 4096, "max_batch": 8, "compute_unit": "CPU", "device_list": [0], "num_threads": 4,
    "kv_cache_mode": "INT8", "block_size": 32, "enable_prefix_cache": True, "prefix_cache_ttl": 300,
    "memory_ratio": 0.8, "rope_scaling": {"type": "LINEAR", "factor": 2.0},
}  # fmt: skip


def builder() -> AsModelRuntimeConfigBuilder:
    return AsModelRuntimeConfigBuilder()


class TestDict:
    @pytest.mark.parametrize("given", [SECTION, {"model": {}, "runtime_config": SECTION}])
    def test_a_section_or_a_whole_config(self, given: dict[str, Any]) -> None:
        assert builder().from_dict(given).build() == BUILT

    def test_an_update_needs_nothing(self) -> None:
        assert builder().max_batch(4).update_from_dict({"engine_max_length": 9}).build() == {
            "max_batch": 4,
            "max_length": 9,
        }

    @pytest.mark.parametrize("name", ["model_name", "compute_unit", "engine_max_length", "engine_max_batch"])
    def test_what_is_missing_is_named(self, name: str) -> None:
        with pytest.raises(ValueError, match=f"has no {name}; it has "):
            builder().from_dict({key: value for key, value in SECTION.items() if key != name})

    @pytest.mark.parametrize(
        ("field", "value", "advice"),
        [
            ("eviction_strategy", "Random", "not used for longest"),
            ("matmul_precision", "medium", "dtype"),
            ("enable_sparsity_matmul", True, "weight_quant"),
            ("lora_names", ["a"], "adapters"),
            ("cuda_mem", {"reserve_size_mb": 600}, "memory_ratio"),
            ("engine_maxbatch", 4, "engine_max_batch"),
        ],
    )
    def test_what_has_no_counterpart_says_what_to_do(self, field: str, value: object, advice: str) -> None:
        with pytest.raises(TypeError, match=advice):
            builder().update_from_dict({field: value})

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("compute_unit", {"device": "CPU"}),
            ("rope_scaling", {"type": "linear", "facto": 2.0}),
            ("rope_scaling", 5),
            ("cuda_mem", [1]),
            ("runtime_config", 5),
        ],
    )
    def test_wrong_contents_are_named(self, field: str, value: object) -> None:
        with pytest.raises(InvalidRequestError, match=field):
            builder().update_from_dict({field: value})


class TestYaml:
    TEXT = "runtime_config:\n  model_name: qwen\n  engine_max_batch: 8\n"

    def test_text_and_file(self, tmp_path: Path) -> None:
        (tmp_path / "di.yaml").write_text(self.TEXT)
        for config in (read_config(self.TEXT), read_config(path=tmp_path / "di.yaml")):
            assert builder().update_from_dict(config).build() == {"name": "qwen", "max_batch": 8}

    @pytest.mark.parametrize("text", ["a: [", "- 1", "", "!!python/object/apply:os.getcwd []"])
    def test_no_mapping_and_no_code(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"YAML|mapping"):
            read_config(text)


class TestSetters:
    def test_both_files(self) -> None:
        built = builder().model_file_path("/out/qwen.asmodel", "/out/qwen.asparam").build()
        assert built == {"path": "/out", "file_prefix": "qwen"}

    def test_files_of_two_models_are_refused(self) -> None:
        with pytest.raises(InvalidRequestError, match="weight_file_path"):
            builder().model_file_path("/out/a.asmodel", "/out/b.asparam")

    def test_threads(self) -> None:
        assert builder().thread_num(4).build() == {"num_threads": 4}


class TestConfig:
    def config(self) -> AsModelConfig:
        return (
            builder().model_name("m").model_dir("/out", "qwen").max_length(2048).compute_unit(TargetDevice.CPU).build()
        )

    def test_attributes_have_its_names_and_ours(self) -> None:
        config = self.config()
        assert (config.model_name, config.engine_max_length, config.max_length) == ("m", 2048, 2048)
        assert (config.model_path, config.file_prefix, config.engine_max_batch) == ("/out", "qwen", None)

    def test_it_is_the_keywords(self) -> None:
        assert dict(self.config()) == {
            "name": "m", "path": "/out", "file_prefix": "qwen", "max_length": 2048, "compute_unit": "CPU",
            "device_list": (), "num_threads": 0,
        }  # fmt: skip

    def test_attributes_are_set_and_checked(self) -> None:
        config = self.config()
        config.engine_max_batch = 4
        config.engine_max_length = None
        assert (config["max_batch"], "max_length" in config) == (4, False)
        with pytest.raises(InvalidRequestError, match="max_batch"):
            config.engine_max_batch = "many"
        assert config["max_batch"] == 4
        with pytest.raises(AttributeError, match="no field 'engine_max_batc'"):
            config.engine_max_batc = 4
        with pytest.raises(AttributeError, match="no field 'engine_max_batc'"):
            _ = config.engine_max_batc

    def test_copies_are_equal(self) -> None:
        config = self.config()
        assert copy.deepcopy(config) == pickle.loads(pickle.dumps(config)) == config
