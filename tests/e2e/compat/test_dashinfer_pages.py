"""The code of DashInfer's pages runs as published, in this process and against a gateway.

All that may change: the import root, the server's address, the model's path, the kind of device. One line is output.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from headrace import allspark
from headrace.allspark import AsStatus, Engine, GenerateRequestStatus
from headrace.types import GeneratedElements
from support.seeds.blocks import adapted, blocks, text_of

OFFLINE, START, PLAIN = "dashinfer_offline_inference.rst", "dashinfer_quick_start.md", "dashinfer_offline_inference.txt"
SNIPPET, CREATION, BUILDER, GENERATION, *SIGNATURES, READING = blocks(OFFLINE)
PROGRAM, LOADING, SERIALIZING, FREEING, STARTING, CONFIG, REQUEST, LOOP, SYNC, DECODING = blocks(START)

IMPORTS = {"from dashinfer": "from headrace"}
DEVICE = {"TargetDevice.CUDA": "TargetDevice.CPU"}
SHOWN = {"I20240906": "# I20240906"}
NAME = "qwen_Qwen2.5-1.5B-Instruct"


@pytest.fixture
def names(tiny: Path, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """What the pages take as given. Afterwards the engine is closed."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(
        "from headrace import allspark\nfrom headrace.allspark import *\nfrom headrace.allspark.engine import *", names
    )
    names |= {"model_local_path": str(tiny), "safe_model_name": NAME, "device_list": [0], "Tensor": torch.Tensor}
    names |= {"output_base_folder": str(tmp_path), "tmp_dir": str(tmp_path), "user_data_type": "float16"}
    names |= {"in_memory": False, "init_quant": True, "weight_only_quant": True, "templated_input_str": "Once upon"}
    yield names
    if "engine" in names:
        names["engine"].close()


def run(block: str, names: dict[str, Any], address: str | None, **changes: Mapping[str, str]) -> None:
    """Run a block, with the replacements that occur in it."""
    allowed = {**IMPORTS, **DEVICE, **(changes.get("more") or {})}
    if address is not None:
        allowed["allspark.Engine()"] = f"allspark.Engine('{address}')"
    text = adapted(block, {before: after for before, after in allowed.items() if before in block})
    exec(compile(text, "page", "exec"), names)


def greedy(engine: Engine, text: str, max_length: int) -> list[int]:
    """The same request by the client itself."""
    engine.start_model(NAME)
    _, queue = engine.client.start_request(NAME, text=text, top_k=1, max_length=max_length)
    ids = [token for elements in queue for token in elements.ids_from_generate]
    engine.stop_model(NAME)
    return ids


def test_the_pages_have_these_blocks() -> None:
    for page in (OFFLINE, START):
        assert len(blocks(page)) == len(re.findall(r"code-block::|^```\w", text_of(page), re.MULTILINE)) == 10


def test_the_page_without_layout_has_the_same_code() -> None:
    """Its lines have lost their indentation, so only the other version can be run."""
    plain = [line for line in text_of(PLAIN).splitlines() if line.strip()]
    for block in blocks(OFFLINE):
        lines = [line.strip() for line in block.splitlines() if line.strip()]
        assert lines in [plain[first : first + len(lines)] for first in range(len(plain))]


class TestOfflineInference:
    def test_the_snippet(self, names: dict[str, Any], address: str | None) -> None:
        run(SNIPPET, names, address)
        engine, queue = names["engine"], names["queue"]
        assert names["status"] == AsStatus.ALLSPARK_SUCCESS
        assert len(names["generated_ids"]) == queue.GeneratedLength() > 0
        assert queue.GenerateStatus() == GenerateRequestStatus.GenerateFinished
        assert {info.state for info in engine.client.get_model(NAME)} == {"STOPPED"}
        assert names["model_loader"].get_tokenizer().decode(names["generated_ids"])

    def test_the_engine_tells_its_version(
        self, names: dict[str, Any], address: str | None, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO, "headrace.allspark"):
            run(CREATION, names, address, more=SHOWN)
        (shown,) = re.findall(r"\] (AllSpark Init with Version: )", CREATION)
        assert f"{shown}headrace-{'engine' if address is None else 'gateway'} 0." in caplog.text

    def test_the_runtime_config(self, names: dict[str, Any]) -> None:
        run(BUILDER, names, None)
        config = names["runtime_config"]
        assert (config.model_name, config.model_path, config.file_prefix) == (
            "my_model",
            "/path/to/model",
            "model_prefix",
        )
        assert (config.engine_max_batch, config.engine_max_length, config.cache_mode) == (32, 2048, "UINT4")
        assert (config.compute_unit, config.device_list) == ("CPU", [0])

    def test_the_generation_config(self, names: dict[str, Any]) -> None:
        run(GENERATION, names, None)
        assert names["config"] == {"do_sample": True, "max_length": 512, "temperature": 0.7, "top_k": 50}

    @pytest.mark.parametrize("block", SIGNATURES, ids=[re.findall(r"def (\w+)", block)[0] for block in SIGNATURES])
    def test_a_method_has_the_documented_parameters(self, block: str, names: dict[str, Any]) -> None:
        before = set(names)
        run(block, names, None)
        (verb,) = set(names) - before - {"__builtins__"}
        documented, ours = names[verb], getattr(Engine, verb)
        assert list(inspect.signature(documented).parameters) == list(inspect.signature(ours).parameters)

    def test_reading(
        self, names: dict[str, Any], tiny: Path, address: str | None, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with Engine(address) as engine:
            engine.install_model({"name": NAME, "path": str(tiny), "max_length": 128})
            engine.start_model(NAME)
            _, _, names["queue"] = engine.start_request_text(NAME, None, "Once upon a time", {"top_k": 1})
            run(READING, names, address)
            assert names["status"] == GenerateRequestStatus.GenerateFinished
            assert len(names["generated_ids"]) == names["queue"].GeneratedLength()
            assert "new token: [" in capsys.readouterr().out
            assert names["generated_ids"] == greedy(engine, "Once upon a time", 128)


class TestQuickStart:
    @pytest.mark.parametrize("in_memory", [False, True])
    def test_the_program(
        self, names: dict[str, Any], tiny: Path, tmp_path: Path, address: str | None, in_memory: bool,
        capsys: pytest.CaptureFixture[str],
    ) -> None:  # fmt: skip
        """Without a download: the page's own switch chooses the branch in which the path is given."""
        paths = {
            "use_modelscope = True": "use_modelscope = False",
            "model_local_path = model_name": f"model_local_path = '{tiny}'",
            '"model_output"': f"'{tmp_path}'",
            **({"in_memory = False": "in_memory = True"} if in_memory else {}),
        }
        run(PROGRAM, names, address, more=paths)
        engine, ids = names["engine"], names["generated_ids"]
        out = capsys.readouterr().out
        assert f"Output: {names['output_text']}" in out
        assert "have been released." in out
        assert names["status"] == GenerateRequestStatus.GenerateFinished
        assert ids == greedy(engine, names["templated_input_str"], 2048)
        assert engine.client.get_model(NAME)[0].effective.config["dtype"] == "FLOAT16"
        written = {file.name for file in tmp_path.iterdir()}
        assert written == (set() if in_memory else {f"{NAME}.asparam", f"{NAME}.asmodel"})

    @pytest.mark.parametrize("in_memory", [False, True])
    @pytest.mark.parametrize("reading", [LOOP, SYNC], ids=["loop", "sync"])
    def test_the_parts(self, names: dict[str, Any], address: str | None, in_memory: bool, reading: str) -> None:
        """One after the other, quantized; memory is freed after the install, as the text around the block says."""
        names["in_memory"] = in_memory
        for block in (LOADING, SERIALIZING, STARTING, FREEING, CONFIG, REQUEST, reading, DECODING):
            run(block, names, address)
        assert names["status"] in (AsStatus.ALLSPARK_SUCCESS, GenerateRequestStatus.GenerateFinished)
        elements = names.get("generated_elem", GeneratedElements(names["generated_ids"]))
        assert elements.ids_from_generate == names["generated_ids"] != []
        assert names["output_text"] == names["model_loader"].get_tokenizer().decode(names["generated_ids"])
        engine = names["engine"]
        engine.stop_model(NAME)
        assert engine.release_model(NAME) == AsStatus.ALLSPARK_SUCCESS

    def test_help_is_there(self) -> None:
        """As the page says: help(dashinfer.allspark.ResultQueue)."""
        for name in re.findall(r"py:method:: (\w+)", text_of(OFFLINE)):
            assert inspect.getdoc(getattr(allspark.ResultQueue, name))
