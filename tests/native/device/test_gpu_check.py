"""What measures a card runs on the simulated device, on a machine that has no more than a card's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from headrace_engine.backends.cuda.device.pool import bytes_a_block, kv_blocks
from headrace_engine.environment import NATIVE_VARIABLE
from headrace_engine.native import Native, load
from native.build import ROOT
from native.conftest import need_sim

from bench.gpu.decode import step_cost
from bench.gpu.shapes import KV_BYTES, LLAMA

MISSING = ["gguf", "grpc", "google", "headrace", "llguidance", "msgspec", "structlog", "uvloop"]
"""What may be absent beside torch, cupy, transformers, numpy and pytest."""

MEASURE = """
import runpy, sys
for name in {missing!r}:
    sys.modules[name] = None
sys.argv = ["check", "--device", "sim", "--results", {results!r}]
runpy.run_module("bench.gpu.check", run_name="__main__")
"""

TEST = """
import sys
for name in {missing!r} + ["hypothesis"]:
    sys.modules[name] = None
import pytest
from bench.gpu.check import kernel_tests
sys.exit(pytest.main([*kernel_tests("sim and forward"), "--collect-only"]))
"""


def run(script: str, libraries: Path) -> str:
    """What a fresh interpreter prints, without the plugins of pytest that are here."""
    folders = os.pathsep.join(str(path) for path in (ROOT / "proto", ROOT / "engine_service", ROOT / "tests", ROOT))
    env = {**os.environ, "PYTHONPATH": folders, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", NATIVE_VARIABLE: str(libraries)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_op_and_every_batch_is_measured_and_kept(libraries: Path, tmp_path: Path) -> None:
    need_sim()
    results = tmp_path / "new" / "gpu.jsonl"
    script = MEASURE.format(missing=MISSING, results=str(results))
    printed = run(script, libraries)
    (kept,) = (json.loads(line) for line in results.read_text().splitlines())
    assert kept["card"] == "sim"
    assert [each["batch"] for each in kept["decode"]["tiny"]] == [1, 3]
    ops = {line.split(" | ")[0].removeprefix("| ") for line in printed.splitlines() if line.count("|") == 7}
    assert set(kept["op_seconds"]) <= ops
    assert len(kept["op_seconds"]) == 22
    assert all(taken > 0 for taken in kept["op_seconds"].values())


def test_the_tests_of_kernels_need_nothing_else(libraries: Path) -> None:
    """All files are read by a pytest without plugins; those of each op are among them."""
    need_sim()
    collected = run(TEST.format(missing=MISSING), libraries)
    for name in ("attention", "kv", "rows", "quantized", "sampling"):
        assert f"test_device_{name}.py::" in collected
    assert "test_norm.py::" in collected


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_card_nothing_is_tested_and_written(tmp_path: Path) -> None:
    folders = os.pathsep.join(str(path) for path in (ROOT / "proto", ROOT / "engine_service", ROOT))
    env = {**os.environ, "PYTHONPATH": folders}
    command = [sys.executable, "-m", "bench.gpu.check"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"gpu-check: .*CUDA, but .+\n", done.stderr)


def test_keys_and_values_cost_what_their_blocks_take(native: Native) -> None:
    """As the shape of pools says it on a device; the codes' step and lowest value included."""
    need_sim()
    for kv, size in KV_BYTES.items():
        blocks = kv_blocks(LLAMA, 16, kv)
        assert bytes_a_block(load("sim"), blocks) == 2 * 16 * LLAMA.num_kv_heads * size(LLAMA.head_dim)


@pytest.mark.parametrize("batch", [1, 128])
def test_a_step_of_the_8b_shape_moves_its_weights_at_least(batch: int) -> None:
    """8.03 billion weights less the embedding, in two bytes each, and 128 KiB of keys and values a token."""
    moved, computed = step_cost(LLAMA, batch, 192)
    assert moved == pytest.approx(2 * (8.030e9 - 0.525e9) + batch * 192 * 131_072, rel=1e-3)
    assert computed == pytest.approx(2 * batch * 7.505e9 + 4 * batch * 192 * 32 * 4096, rel=1e-3)
