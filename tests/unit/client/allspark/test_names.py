"""All names of DashInfer's documents are there, and no others leak; those without counterpart say what to do."""

from __future__ import annotations

import importlib

import pytest
from headrace import ResultQueue, allspark
from headrace.types import GeneratedElements, GenerateStatus


def test_the_package_s_names() -> None:
    names: dict[str, object] = {}
    exec("from headrace.allspark import *", names)
    assert names.keys() - {"__builtins__"} == set(allspark.__all__)
    assert set(allspark.__all__) >= {
        "AsStatus", "AsModelConfig", "Engine", "GenerateRequestStatus", "MultiMediaInfo", "HuggingFaceModel",
        "AsModelRuntimeConfigBuilder", "ASGenerationConfigBuilder", "ResultQueue", "GeneratedElements", "TargetDevice",
        "AsCacheMode", "LLM", "DashInferModel", "PromptTemplate",
    }  # fmt: skip


@pytest.mark.parametrize("module", ["engine", "model_loader", "prompt_utils"])
def test_a_module_s_names_are_the_package_s(module: str) -> None:
    names: dict[str, object] = {}
    exec(f"from headrace.allspark.{module} import *", names)
    del names["__builtins__"]
    assert names
    for name, found in names.items():
        assert getattr(allspark, name) is found


def test_results_are_the_client_s_own() -> None:
    assert allspark.ResultQueue is ResultQueue
    assert allspark.GeneratedElements is GeneratedElements
    assert allspark.GenerateRequestStatus is GenerateStatus


@pytest.mark.parametrize("name", ["ClientEngine", "AsEngineStat", "QuantizationSettings", "VocabType"])
def test_an_import_without_counterpart_says_what_to_do(name: str) -> None:
    with pytest.raises(ImportError, match=f"headrace.allspark has no {name}: ."):
        exec(f"from headrace.allspark import {name}")


def test_another_name_is_an_ordinary_error() -> None:
    assert not hasattr(allspark, "Engin")
    with pytest.raises(ImportError, match="cannot import name"):
        exec("from headrace.allspark import Engin")


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (allspark.Engine, "get_no_wait"), (allspark.Engine, "load_lora"),
        (allspark.HuggingFaceModel, "init_quantization"),
        (allspark.AsModelRuntimeConfigBuilder, "eviction_strategy"), (allspark.MultiMediaInfo, "set_multimedia_type"),
    ],
)  # fmt: skip
def test_an_attribute_without_counterpart_says_what_to_do(owner: type, name: str) -> None:
    with pytest.raises(AttributeError, match=f"{owner.__name__} has no '{name}': ."):
        getattr(owner.__new__(owner), name)


def test_chatml_is_rendered_as_qwen_s_template_would() -> None:
    rendered = importlib.import_module("headrace.allspark.prompt_utils").PromptTemplate.apply_chatml_template("Hi?")
    assert rendered == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nHi?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_media_are_items_of_mm_info() -> None:
    info = allspark.MultiMediaInfo().add(b"x", "image/png").add(b"y", "image/jpeg", 7)
    built = allspark.ASGenerationConfigBuilder().mm_info(info).build()
    assert built["mm_info"] == [
        {"data": b"x", "mime_type": "image/png"},
        {"data": b"y", "mime_type": "image/jpeg", "placeholder_id": 7},
    ]
