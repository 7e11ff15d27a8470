"""Steps of a mixture of experts with the layers of Qwen3-30B-A3B, two of them: ours beside llama.cpp's llama-bench.

    python -m bench.cpu.mixture [--llama-bench PROGRAM] [--no-write]

Both read the same GGUF file of random weights, with a small vocabulary, so that the layers are what takes time. A step
has one row, or 16: those of the beginning of one prompt. The floor is the memory's median rate for what a step has to
read: attention, routers, and the weights of the experts that its rows use, whose number is the mean for a router that
prefers none. Measured in turns, ROUNDS times.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median

import gguf
import numpy as np
from headrace_engine.backends.cpu.runner import CpuRunner
from headrace_engine.backends.host import compute_threads
from headrace_engine.config import ComputeUnit, ModelFormat
from headrace_engine.core.runner import SequenceStep
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.sampling_params import SamplingParams

from bench.common.machine import cpu_name
from bench.common.page import MIXTURE, measurement
from bench.cpu.loaded import loaded
from bench.kernels.limits import measure

ROUNDS = 3
ROWS = (1, 16)
HIDDEN, HEADS, KV_HEADS, HEAD, WIDTH, EXPERTS, USED, LAYERS, VOCABULARY = 2048, 32, 4, 128, 768, 128, 8, 2, 2048
_BLOCKS = {"Q4_0": (18, 0.0048)}
"""Bytes of 32 weights, and a scale that gives them a usual size."""
_ATTENTION = 2 * HIDDEN * HEADS * HEAD + 2 * HIDDEN * KV_HEADS * HEAD
_EXPERT = 3 * HIDDEN * WIDTH
_STEPS = 20


def write_model(path: Path, kind: str) -> None:
    """Write a GGUF file with random weights."""
    writer, rng = gguf.GGUFWriter(path, "qwen3moe"), np.random.default_rng(0)
    writer.add_block_count(LAYERS)
    writer.add_context_length(4096)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(6144)
    writer.add_expert_feed_forward_length(WIDTH)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(USED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("none")
    for name, shape in _tensors():
        if len(shape) == 1:
            writer.add_tensor(name, np.ones(shape, np.float32))
        elif "ffn_gate_inp" in name:
            writer.add_tensor(name, rng.standard_normal(shape, np.float32) / np.float32(HIDDEN**0.5))
        else:
            writer.add_tensor(name, _random_blocks(rng, shape, kind), raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors() -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "token_embd.weight", (VOCABULARY, HIDDEN)
    yield "output_norm.weight", (HIDDEN,)
    yield "output.weight", (VOCABULARY, HIDDEN)
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (HIDDEN,), "attn_q": (HEADS * HEAD, HIDDEN), "attn_k": (KV_HEADS * HEAD, HIDDEN),
        "attn_v": (KV_HEADS * HEAD, HIDDEN), "attn_output": (HIDDEN, HEADS * HEAD), "attn_q_norm": (HEAD,),
        "attn_k_norm": (HEAD,), "ffn_norm": (HIDDEN,), "ffn_gate_inp": (EXPERTS, HIDDEN),
        "ffn_gate_exps": (EXPERTS, WIDTH, HIDDEN), "ffn_up_exps": (EXPERTS, WIDTH, HIDDEN),
        "ffn_down_exps": (EXPERTS, HIDDEN, WIDTH),
    }  # fmt: skip
    for layer in range(LAYERS):
        for name, shape in shapes.items():
            yield f"blk.{layer}.{name}.weight", shape


def _random_blocks(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    size, scale = _BLOCKS[kind]
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // 32, size), np.uint8)
    blocks[..., :2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def used_experts(rows: int) -> float:
    """Return the mean number of different experts that rows use, if their choices are independent."""
    return EXPERTS * (1 - (1 - USED / EXPERTS) ** rows)


def read_bytes(rows: int, kind: str) -> float:
    """Return the bytes of weights that a step has to read."""
    codes = LAYERS * (_ATTENTION + used_experts(rows) * _EXPERT) + VOCABULARY * HIDDEN
    return codes * _BLOCKS[kind][0] / 32 + LAYERS * EXPERTS * HIDDEN * 4


def our_runner(path: Path, *, rows: int = 64, length: int = 512, threads: int = 0) -> AbstractContextManager[CpuRunner]:
    """Return a model on the cpu backend, for steps of so many rows of one sequence."""
    plan = CorePlan(
        path=str(path), format=ModelFormat.AUTO, compute_unit=ComputeUnit.CPU, max_batch=1, max_length=length,
        max_prefill_tokens=rows, block_size=16, num_blocks=length // 16, num_threads=threads,
    )  # fmt: skip
    return loaded(plan)


def our_seconds(runner: CpuRunner, rows: int) -> float:
    """Return the median seconds of steps of some rows, each of other ids."""
    rng, times = np.random.default_rng(1), []
    for _ in range(_STEPS):
        step = SequenceStep(rng.integers(0, VOCABULARY, rows).tolist(), 0, range(32), SamplingParams(temperature=0.0))
        began = time.perf_counter()
        runner.run([step])
        times.append(time.perf_counter() - began)
    return median(times)


def their_seconds(program: Path, path: Path, rows: int, threads: int) -> float:
    """Return llama.cpp's mean seconds of a step of some rows."""
    work = ["-p", "0", "-n", str(_STEPS)] if rows == 1 else ["-p", str(rows), "-n", "0"]
    command = [str(program), "-m", str(path), "-t", str(threads), "-r", "5", "-o", "json", *work]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return rows / float(json.loads(answer.stdout)[0]["avg_ts"])


def main() -> None:
    """Measure, print and write."""
    parser = measurement(__doc__)
    parser.add_argument("--llama-bench", type=Path, help="llama.cpp's program; without it, ours alone is measured")
    chosen = parser.parse_args()
    threads = compute_threads()
    rate = measure(threads).usual_memory
    lines = ["| format | rows | experts used | ours, ms | llama.cpp, ms | floor, ms | ours, of the floor |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for kind in _BLOCKS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "mixture.gguf"
            write_model(path, kind)
            lines += _measured(path, kind, threads, rate, chosen.llama_bench)
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    text = f"{when}. {cpu_name()}, {threads} threads. Memory read {rate:.1f} GB/s (median).\n\n" + "\n".join(lines)
    print(text)
    if chosen.write:
        MIXTURE.write(text)


def _measured(path: Path, kind: str, threads: int, rate: float, program: Path | None) -> Iterator[str]:
    with our_runner(path) as runner:
        for rows in ROWS:
            ours, theirs = [], []
            for _ in range(ROUNDS):
                ours.append(our_seconds(runner, rows))
                if program is not None:
                    theirs.append(their_seconds(program, path, rows, threads))
            floor, best = read_bytes(rows, kind) / (rate * 1e9), median(ours)
            peer = f"{median(theirs) * 1e3:.2f}" if theirs else "–"
            figures = f"{best * 1e3:.2f} | {peer} | {floor * 1e3:.2f} | {floor / best:.0%}"
            yield f"| {kind} | {rows} | {used_experts(rows):.0f} of {EXPERTS} | {figures} |"


if __name__ == "__main__":
    main()
