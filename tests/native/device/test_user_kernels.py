"""Logits processors in CUDA on a card, as cupy compiles and launches them."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest
import torch
from headrace_engine.backends.processors import python_processes
from headrace_engine.backends.torch.sampling.processing import RowProcessors
from headrace_engine.backends.torch.sampling.user_kernels import compile_kernel, device_kernels
from headrace_engine.core.row_fields import Processing
from headrace_engine.errors import BadProcessor
from headrace_engine.generation_config import LogitsProcessor
from headrace_engine.ipc.plans import ProcessorFile
from support.models.processor_page import example

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.mark.parametrize("vocab", [300, 49_152])
def test_the_page_s_kernel_does_what_its_python_does(tmp_path: Path, vocab: int) -> None:
    device = torch.device("cuda", 0)
    files = [ProcessorFile(kind, str(example(f"steer.{kind}", tmp_path))) for kind in ("cu", "py")]
    kernels, idle = device_kernels(files, device)
    assert not idle
    run = RowProcessors(python_processes(files, {}), kernels)
    row = torch.randn(vocab, device=device)
    row[3] = -torch.inf
    left = []
    for name in ("cu", "py"):
        changed = row.clone()
        chosen = [LogitsProcessor(name, (2.5, 3, 11, 250))]
        assert run(changed, Processing(chosen, array("i", [5, 6, 7]))) == ""
        left.append(changed)
    assert torch.equal(*left)
    assert left[0][[3, 7]].isneginf().all()
    assert left[0][11] == row[11] + 2.5


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('extern "C" __global__ void process(float *logits) { logits[0] = no_such_name; }', "no_such_name"),
        ('extern "C" __global__ void other(float *logits) {}', "gives no kernel"),
    ],
)
def test_source_without_a_kernel_gives_the_compilers_words(source: str, words: str) -> None:
    with pytest.raises(BadProcessor, match=words):
        compile_kernel(torch.device("cuda", 0), source, ProcessorFile("x", "x.cu"))
