"""Files of logits processors: when they are read, and what is wrong with some."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from headrace_engine.backends.cpu import make_runner as make_cpu
from headrace_engine.backends.torch import make_runner as make_torch
from headrace_engine.core.runner import Runner
from headrace_engine.errors import BadProcessor
from headrace_engine.generation_config import LogitsProcessor
from headrace_engine.ipc.plans import CorePlan, ProcessorFile
from support.backends.runners import ready, silent
from unit.backends.processes import (
    PROCESSES,
)
from unit.backends.processor_rows import PROMPT, one, plan, processing, row


@pytest.fixture(scope="module", params=[make_cpu, make_torch], ids=["cpu", "torch"])
def runner(request, tiny_llama) -> Iterator[Runner]:
    runner = ready(request.param(plan(tiny_llama), PROCESSES))
    yield runner
    runner.close()


def written(folder: Path, name: str, text: str) -> ProcessorFile:
    path = folder / name
    path.write_text(text)
    return ProcessorFile("mine", str(path))


@pytest.fixture(params=[make_cpu, make_torch], ids=["cpu", "torch"])
def make(request) -> Callable[[CorePlan], Runner]:
    return request.param


def test_a_file_is_read_when_the_model_is_loaded(make, tiny_llama, tmp_path):
    text = "OFFSET = 1e4\n\ndef process(logits, ids, arguments):\n    logits[ids[-1] + 1] += OFFSET * arguments[0]\n"
    runner = ready(make(plan(tiny_llama, logits_processors=(written(tmp_path, "mine.py", text),))))
    step = row(processing=processing(LogitsProcessor("mine", (1.0,))))
    assert one(runner, step).token_id == PROMPT[-1] + 1
    runner.close()


def test_a_file_may_describe_its_data_with_classes(make, tiny_llama, tmp_path):
    text = "from __future__ import annotations\nfrom dataclasses import dataclass\n\n@dataclass\nclass Word:\n"
    text += "    text: str\n\ndef process(logits, ids, arguments): ...\n"
    runner = ready(make(plan(tiny_llama, logits_processors=(written(tmp_path, "mine.py", text),))))
    assert one(runner, row(processing=processing("mine"))) == one(runner, row())
    runner.close()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def process(logits, ids, arguments:\n", "SyntaxError"),
        ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def procces(logits, ids, arguments): ...\n", "has no function process"),
        ("raise SystemExit('enough')\n", "SystemExit: enough"),
        ("raise ValueError('\\udcff')\n", r"ValueError: \\udcff"),
        ("process = 7\n", "has to take logits, ids, arguments"),
        ("def process(logits, ids): ...\n", "has to take logits, ids, arguments: too many positional"),
    ],
)
def test_a_wrong_processor_file_is_reported_at_load(make, tiny_llama, tmp_path, text, words):
    runner = make(plan(tiny_llama, logits_processors=(written(tmp_path, "mine.py", text),)))
    with pytest.raises(BadProcessor, match=rf"'mine' \(.*mine.py\).*{words}") as refusal:
        runner.load(silent)
    assert refusal.value.reason == "BAD_PROCESSOR"


def test_a_missing_file_is_an_error(make, tiny_llama, tmp_path):
    runner = make(plan(tiny_llama, logits_processors=(ProcessorFile("mine", str(tmp_path / "gone.py")),)))
    with pytest.raises(BadProcessor, match="No such file"):
        runner.load(silent)


def test_a_missing_function_is_an_error(make, tiny_llama):
    with pytest.raises(BadProcessor, match="logits processor 'mine' has no function"):
        make(plan(tiny_llama, logits_processors=(ProcessorFile("mine"),))).load(silent)


def test_f1_a_fifo_in_the_place_of_a_file_is_not_waited_for(make, tiny_llama, tmp_path):
    os.mkfifo(tmp_path / "mine.py")
    file = ProcessorFile("mine", str(tmp_path / "mine.py"))
    with pytest.raises(BadProcessor, match="not a regular file but a FIFO"):
        make(plan(tiny_llama, logits_processors=(file,))).load(silent)


def test_code_for_cuda_idles_on_a_cpu(make, tiny_llama, tmp_path):
    runner = ready(make(plan(tiny_llama, logits_processors=(written(tmp_path, "mine.cu", "nonsense"),))))
    assert list(runner.idle_processors) == ["mine"]
    assert "is for CUDA devices" in runner.idle_processors["mine"]
    runner.close()
