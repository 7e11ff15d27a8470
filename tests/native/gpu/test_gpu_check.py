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
from headrace_engine.errors import InvalidArgument
from headrace_engine.native import Native, load
from native.conftest import need_sim
from support.sim.card_machine import only_needed
from support.sim.device import SimDevice

from bench.common.page import RESULTS
from bench.gpu import kernel_tests, library, written
from bench.gpu import ops as measured
from bench.gpu.decode import step_cost
from bench.gpu.outcome import Kept, Outcome
from bench.gpu.shapes import KV_BYTES, LLAMA


def run(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """What a fresh interpreter does in an environment whose module path is completed."""
    path = os.pathsep.join((env["PYTHONPATH"], kernel_tests.FOLDERS))
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**env, "PYTHONPATH": path}, check=False)


@pytest.mark.soak
def test_every_op_and_every_batch_is_measured_and_kept(libraries: Path, tmp_path: Path) -> None:
    need_sim()
    env = {**only_needed(tmp_path / "hook"), NATIVE_VARIABLE: str(libraries)}
    out = tmp_path / "new" / "out"
    options = ["--device", "sim", "--out", str(out), "--budget", "10000", "limits", "ops:*", "decode:*"]
    done = run(env, "-m", "bench.gpu.check", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    kept = Kept(out).read()
    assert {outcome.card for outcome in kept.values()} == {"sim"}
    for how in ("greedy", "sampled"):
        assert [each["batch"] for each in kept[f"decode:tiny:{how}"].figures["batches"]] == [1, 3]
    found = {name: taken for step, outcome in kept.items() if step.startswith("ops") for name, taken in
             outcome.figures.items()}  # fmt: skip
    assert len(found) == 23
    assert all(taken > 0 for taken in found.values())
    page = (out / "page.md").read_text()
    assert page in done.stdout
    shown = {line.split(" | ")[0].removeprefix("| ") for line in page.splitlines() if line.count("|") == 7}
    assert set(found) <= shown


def test_the_tests_of_kernels_need_nothing_else(libraries: Path, tmp_path: Path) -> None:
    """All files are read by a pytest without plugins; those of each op are among them."""
    need_sim()
    env = {**only_needed(tmp_path), NATIVE_VARIABLE: str(libraries)}
    arguments = kernel_tests.arguments("sim and forward", kernel_tests.files())
    done = run(env, "-m", "pytest", *arguments, "--collect-only")
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("attention", "kv", "rows", "gates", "quantized", "sampling"):
        assert f"test_device_{name}.py::" in done.stdout
    assert "test_norm.py::" in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_card_nothing_is_tested_and_measured(tmp_path: Path) -> None:
    done = run({**os.environ, "PYTHONPATH": ""}, "-m", "bench.gpu.check", "--out", str(tmp_path))
    assert done.returncode == 1
    lines = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert lines[0].startswith("failed         environment")
    assert {line.split()[0] for line in lines[1:]} == {"left"}
    assert re.search(r"cupy cannot be imported|CUDA, but ", done.stdout)


def test_a_named_folder_without_the_library_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NATIVE_VARIABLE, str(tmp_path))
    with pytest.raises(
        library.NoLibrary, match=rf"{NATIVE_VARIABLE} is {tmp_path}, where there is no libcore_cuda\.so"
    ):
        library.find("cuda")


def test_a_library_built_beforehand_is_of_these_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NATIVE_VARIABLE, raising=False)
    monkeypatch.setattr(library, "BEFOREHAND", tmp_path)
    monkeypatch.setattr(library, "_built", lambda: Path("built now"))
    assert library.find("cuda") == Path("built now")
    (tmp_path / "libcore_cuda.so").touch()
    assert library.find("cuda") == Path("built now")
    library.note_sources(tmp_path)
    assert library.find("cuda") == tmp_path
    (tmp_path / "core_cuda.sources.txt").write_text("of other sources")
    assert library.find("cuda") == Path("built now")


def test_flash_attention_is_measured_where_torch_lacks_names(simulator: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the operator below, which has the parameters that are passed."""

    class Older(SimDevice):
        def attention(self) -> measured.VaryingAttention:
            raise InvalidArgument("torch is too old")

    attend = measured.varying_attention(Older())
    operator = torch.ops.aten._flash_attention_forward
    names = [argument.name for argument in operator.default._schema.arguments]
    passed: dict[str, object] = {}

    def forward(*values: object, **named: object) -> tuple[object, ...]:
        passed.update(zip(names, values, strict=False), **named)
        return ("out", "more")

    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", forward)
    firsts = torch.tensor([0, 3])
    for window, seen in ((0, {}), (5, {"window_size_left": 4, "window_size_right": 0})):
        passed.clear()
        assert attend(*"qkv", firsts, longest=3, window=window, scale=0.5) == "out"  # type: ignore[comparison-overlap, arg-type]
        assert set(passed) <= set(names)
        expected = {"query": "q", "max_q": 3, "dropout_p": 0.0, "is_causal": True, "scale": 0.5, **seen}
        assert {name: passed[name] for name in expected} == expected


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


def test_what_was_found_is_adopted_into_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "gpu.md"
    page.write_text((RESULTS / "gpu.md").read_text())
    monkeypatch.setattr("bench.common.page.RESULTS", tmp_path)
    monkeypatch.setattr("bench.gpu.report.RUNS", tmp_path / "gpu.jsonl")
    measured = {"batch": 8, "prompt_s": 0.01, "step_s": 0.005, "tokens_s": 1234.0}
    found = {
        "limits": {"copy_bytes_s": 3e12, "product_ops_s": 8e14},
        "ops:rows": {"gather_rows": 1e-4},
        "decode:Llama 3.1 8B:sampled": {"batches": [{**measured, "batch": batch} for batch in (1, 8, 32, 128)]},
        "tests:test_norm.py": {"passed": 300},
    }
    outcomes = {name: Outcome(name, "passed", 1.0, figures, card="a card") for name, figures in found.items()}
    outcomes["ops:attention"] = Outcome("ops:attention", "too long", 90.0, error="…\nkilled after 90 s")
    written.adopt(outcomes)
    text = page.read_text()
    assert "| gather_rows | 134.22 | 0.00 | 44.7 | 100.0 | 45 |" in text
    assert "| append_kv | 100.66 | 0.00 | 33.6 | not here |  |" in text
    assert "Llama 3.1 8B, sampled with top_k and top_p" in text
    assert "Tests of the kernels: 1 of 1 files passed, with 300 tests." in text
    assert "- ops:attention: **too long** (killed after 90 s)" in text
    (kept,) = (json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines())
    assert kept["decode"]["Llama 3.1 8B:sampled"][1] == measured
    del outcomes["limits"]
    with pytest.raises(SystemExit, match="no outcome of limits"):
        written.adopt(outcomes)


def test_cutting_a_file_short_loses_that_outcome_alone(tmp_path: Path) -> None:
    """What is no outcome of a step is passed over."""
    (tmp_path / "limits.step.json").write_text('{"step": "limits", "ending": "pas')
    (tmp_path / "ops-rows.step.json").write_text(json.dumps({"step": "ops:rows", "ending": "passed", "seconds": 1.0}))
    (tmp_path / "other.step.json").write_text("[1]")
    assert list(Kept(tmp_path).read()) == ["ops:rows"]
