"""LMDeploy's config classes and templates: names, defaults, and what has no counterpart."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from headrace import InvalidRequestError, lmdeploy
from headrace._values import calls
from headrace.lmdeploy import ChatTemplateConfig, GenerationConfig, PytorchEngineConfig, TurbomindEngineConfig

TURBOMIND = {
    "model_name": None, "model_format": "hf", "tp": 1, "session_len": 2048, "max_batch_size": 128, "quant_policy": 8,
    "rope_scaling_factor": 0.0, "use_logn_attn": False, "download_dir": None, "revision": "main",
}  # fmt: skip
PYTORCH = {
    "model_name": "", "tp": 1, "session_len": 2048, "max_batch_size": 128, "eviction_type": "copy",
    "prefill_interval": 16, "block_size": 64, "num_cpu_blocks": 5, "num_gpu_blocks": 7, "adapters": {"a": "/a"},
    "download_dir": None, "revision": "main",
}  # fmt: skip


def installs(config: Any) -> dict[str, Any]:
    fields = config.build()
    calls.install_model("m", "/m", engine_ids=(), no_wait=False, fields=fields)
    return fields


def test_every_documented_field_of_turbomind_has_its_place() -> None:
    assert installs(TurbomindEngineConfig(**TURBOMIND)) == {
        "format": "HF", "tensor_parallel": 1, "max_length": 2048, "max_batch": 128, "kv_cache_mode": "INT8",
        "logn_attention": False, "revision": "main",
    }  # fmt: skip


def test_every_documented_field_of_pytorch_has_its_place() -> None:
    assert installs(PytorchEngineConfig(**PYTORCH)) == {
        "tensor_parallel": 1, "max_length": 2048, "max_batch": 128, "block_size": 64, "num_host_blocks": 5,
        "num_blocks": 7, "kv_cache_mode": "DEFAULT", "adapters": [{"name": "a", "path": "/a"}], "revision": "main",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["hf", "awq", "gptq", "fp8", "compressed-tensors"])
def test_quantized_files_are_those_of_hugging_face(name: str) -> None:
    assert installs(TurbomindEngineConfig(model_format=name))["format"] == "HF"


def test_what_the_engine_does_not_have_reaches_it_to_be_refused() -> None:
    fields = installs(TurbomindEngineConfig(tp=2, rope_scaling_factor=2.0, use_logn_attn=True))
    assert fields["tensor_parallel"] == 2
    assert fields["rope_scaling"] == {"type": "DYNAMIC", "factor": 2.0}
    assert fields["logn_attention"] is True


@pytest.mark.parametrize(
    ("kind", "field", "text"),
    [
        (TurbomindEngineConfig, {"model_format": "llama"}, "Hugging Face"),
        (TurbomindEngineConfig, {"rope_scaling_factor": float("nan")}, "must be a finite number"),
        (TurbomindEngineConfig, {"rope_scaling_factor": float("inf")}, "must be a finite number"),
        (TurbomindEngineConfig, {"download_dir": "/cache"}, "HF_HOME"),
        (PytorchEngineConfig, {"prefill_interval": 4}, "no interval"),
        (PytorchEngineConfig, {"eviction_type": "drop"}, "recompute"),
        (TurbomindEngineConfig, {"model_format": 5}, "a string"),
        (TurbomindEngineConfig, {"model_format": {}}, "a string"),
        (TurbomindEngineConfig, {"quant_policy": 5}, "0, 4 or 8"),
        (TurbomindEngineConfig, {"quant_policy": True}, "0, 4 or 8"),
        (ChatTemplateConfig, {"capability": "python"}, "completion"),
        (ChatTemplateConfig, {"model_name": "internlm2-chat"}, "template in the model's files"),
        (ChatTemplateConfig, {"system": 5}, "a string"),
    ],
)
def test_a_value_without_counterpart_is_refused(kind: Any, field: dict[str, Any], text: str) -> None:
    name, value = next(iter(field.items()))
    with pytest.raises(InvalidRequestError, match=f"^{name} = {value!r}.*{text}"):
        kind(**field)


@pytest.mark.parametrize("fields", [{"eviction_type": "copy"}, {"num_cpu_blocks": 5}])
def test_blocks_in_host_memory_need_both_fields(fields: dict[str, Any]) -> None:
    config = PytorchEngineConfig(**fields)
    with pytest.raises(InvalidRequestError, match=r"eviction_type.*num_cpu_blocks"):
        config.build()


@pytest.mark.parametrize(
    ("field", "text", "category"),
    [
        ({"quant_policy": 4}, "below 0.4 meant 8 bits", UserWarning),
        ({"cache_max_entry_count": 0.2}, "memory_ratio", UserWarning),
        ({"model_name": "internlm"}, "no effect", DeprecationWarning),
    ],
)
def test_what_means_something_else_is_warned_of(field: Any, text: str, category: type[Warning]) -> None:
    with pytest.warns(category, match=text) as warned:
        TurbomindEngineConfig(**field)
    assert [each.filename for each in warned] == [__file__]


def test_fields_are_attributes_that_can_be_read_and_set() -> None:
    config = GenerationConfig(top_p=0.5)
    config.top_k = 40
    assert (config.top_k, config.top_p, config.max_new_tokens, config.stop_words) == (40, 0.5, 512, None)
    assert config.build()["top_k"] == 40
    with pytest.raises(AttributeError, match="did you mean top_k"):
        config.topk = 5
    with pytest.raises(AttributeError, match="did you mean top_k"):
        _ = config.topk
    with pytest.raises(InvalidRequestError, match="top_k"):
        config.top_k = "many"
    assert config.top_k == 40


def test_configs_are_copied_compared_and_shown_by_value() -> None:
    config = GenerationConfig(top_k=3)
    for other in (copy.copy(config), copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert other == config
        assert other.build() == config.build()
    assert config != GenerationConfig()
    assert repr(config).startswith("GenerationConfig(n=1, max_new_tokens=512, top_p=1.0, top_k=3,")


def test_a_copy_is_set_alone() -> None:
    config = GenerationConfig()
    other = copy.copy(config)
    other.top_k = 9
    assert (config.top_k, config.build()["top_k"]) == (1, 1)


def test_a_model_path_in_a_config_is_refused() -> None:
    with pytest.raises(TypeError, match="give it to pipeline"):
        TurbomindEngineConfig(model_path="/m")  # type: ignore[call-arg]


class TestTemplate:
    PIECES = ChatTemplateConfig("mine", system="S", meta_instruction="M", eosys="s", user="U", eoh="u", assistant="A")

    def test_messages_stand_between_the_pieces_of_their_roles(self) -> None:
        asked = [{"role": "user", "content": "1"}]
        answered = [*asked, {"role": "assistant", "content": "2"}]
        assert self.PIECES.render(asked) == "SMsU1uA"
        assert self.PIECES.render([*answered, {"role": "user", "content": [{"text": "3"}, {"text": "4"}]}]) == (
            "SMsU1uA2U34uA"
        )
        assert self.PIECES.render([{"role": "system", "content": "0"}, *asked]) == "S0sU1uA"

    def test_a_last_answer_is_continued(self) -> None:
        pieces = ChatTemplateConfig(user="U", assistant="A", eoa="a", separator="|")
        answered = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]
        assert pieces.render(answered) == "U1A2"
        assert pieces.render([*answered, {"role": "user", "content": "3"}]) == "U1A2a|U3A"

    def test_what_has_no_piece_is_refused(self) -> None:
        with pytest.raises(InvalidRequestError, match=r"messages\[0\].role"):
            self.PIECES.render([{"role": "critic", "content": "1"}])
        with pytest.raises(InvalidRequestError, match=r"messages\[0\].content"):
            self.PIECES.render([{"role": "user", "content": [{"type": "image_url"}]}])


@pytest.mark.parametrize("name", ["serve", "client", "Tokenizer", "VisionConfig"])
def test_names_without_counterpart_say_what_to_do(name: str) -> None:
    with pytest.raises(ImportError, match=f"headrace.lmdeploy has no {name}: "):
        exec(f"from headrace.lmdeploy import {name}")
    with pytest.raises(AttributeError):
        _ = lmdeploy.nothing


PIECES = {"model_name": "mine", "user": "<u>", "eoh": "</u>", "assistant": "<a>", "stop_words": ["</a>"]}


def test_a_template_comes_from_a_json_file_or_text(tmp_path: Path) -> None:
    path = tmp_path / "template.json"
    path.write_text(json.dumps(PIECES))
    for given in (str(path), json.dumps(PIECES), "\n " + json.dumps(PIECES)):
        template = ChatTemplateConfig.from_json(given)
        assert template == ChatTemplateConfig(**PIECES)
    assert template.render([{"role": "user", "content": "Hi"}]) == "<u>Hi</u><a>"


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ('{"user": ', "not JSON"),
        ('{"users": "<u>"}', "did you mean user"),
        ('{"user": 3}', "user = 3"),
        ('{"model_name": "vicuna"}', "model_name"),
        (7, "path of a JSON file"),
    ],
)
def test_json_that_is_no_template_is_refused(given: Any, complaint: str) -> None:
    with pytest.raises(InvalidRequestError, match=complaint):
        ChatTemplateConfig.from_json(given)


def test_json_that_is_no_object_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text("[1]")
    with pytest.raises(InvalidRequestError, match="one JSON object"):
        ChatTemplateConfig.from_json(str(path))
    with pytest.raises(FileNotFoundError):
        ChatTemplateConfig.from_json(str(tmp_path / "none.json"))
