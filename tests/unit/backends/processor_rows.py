"""Rows of a step whose logits processors change."""

from __future__ import annotations

from array import array
from pathlib import Path

from headrace_engine.config import ComputeDtype
from headrace_engine.core.row_fields import Processing
from headrace_engine.core.runner import Runner, Sampled, SequenceStep
from headrace_engine.generation_config import LogitsProcessor
from headrace_engine.ipc.plans import CorePlan, ProcessorFile
from headrace_engine.sampling_params import SamplingParams
from support.backends.runners import plan_for
from unit.backends.processes import PROCESSES

PROMPT = [3, 90, 41, 7, 7, 260, 18]
GREEDY = SamplingParams(temperature=0, logprobs=True, top_logprobs=3)
FILES = tuple(ProcessorFile(name) for name in PROCESSES)


def plan(tiny_llama: Path, **changes) -> CorePlan:
    sizes = {"max_batch": 8, "max_length": 128, "max_prefill_tokens": 64, "num_blocks": 32}
    return plan_for(tiny_llama, dtype=ComputeDtype.FLOAT32, **{**sizes, "logits_processors": FILES, **changes})


def processing(*calls: str | LogitsProcessor, ids=PROMPT) -> Processing:
    chosen = [call if isinstance(call, LogitsProcessor) else LogitsProcessor(call) for call in calls]
    return Processing(chosen, array("i", ids))


def row(block=0, sampling=GREEDY, **fields) -> SequenceStep:
    return SequenceStep(PROMPT, 0, (block,), sampling, **fields)


def one(runner: Runner, step: SequenceStep) -> Sampled:
    (sampled,) = runner.run([step])
    return sampled
