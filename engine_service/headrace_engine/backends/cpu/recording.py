"""Records the step of a decoder as a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace_engine.backends.cpu.adapters import CpuAdapters
from headrace_engine.backends.cpu.offsets import plan_offsets
from headrace_engine.backends.cpu.ops import RecordingOps
from headrace_engine.backends.cpu.parallel.ops import RankOps
from headrace_engine.backends.cpu.parallel.share import CpuShare
from headrace_engine.backends.cpu.weights.rows import padded_head_dim
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.models.decoder import Decoder
from headrace_engine.models.ops import Batch
from headrace_engine.models.rope.tables import PositionTables
from headrace_engine.models.spec import DecoderSpec
from headrace_engine.native import Activations, Cpu, Kv, Program, Rows, Shape, Value


@dataclass(frozen=True, slots=True)
class Recorded:
    """The program of a step, and the values that are read after a run.

    Attributes:
        states: last hidden states of all rows, after the final norm.
        selected: the hidden states of rows that need logits.
        logits: logits of those rows.
    """

    program: Program
    states: Value
    selected: Value
    logits: Value


def record_program(
    cpu: Cpu,
    plan: CorePlan,
    spec: DecoderSpec,
    weights: Mapping[str, Any],
    positions: PositionTables,
    kv: Kv,
    activations: Activations,
    adapters: CpuAdapters | None = None,
    share: CpuShare | None = None,
) -> Recorded:
    """Record the step of a decoder for the plan's largest batch.

    Args:
        weights: packed matrices, and float32 vectors, by canonical name.
        adapters: None: the plan has no room for any.
        share: what this rank holds; None: there is one.
    """
    padded = replace(spec, head_dim=padded_head_dim(spec), attention_scale=spec.score_scale)
    filled = spec.head_dim / padded.head_dim
    if share is None:
        ops = RecordingOps(padded, filled, positions, activations, adapters)
    else:
        ops, weights = RankOps(padded, filled, positions, activations, share, adapters), share.marked(weights)
    logits = Decoder[Any, None](padded, ops, weights, adapts=adapters is not None).forward(Batch((), (), ()))
    logits = ops.whole(logits, spec.vocab_size)
    ops.sample(logits)
    counts = {Rows.TOKENS: plan.max_prefill_tokens, Rows.LOGITS: plan.max_rows}
    offsets, floats = plan_offsets(ops.recorded, counts)
    program = Program(cpu, _shape(plan, padded, share, positions.length, kv, floats))
    for op in ops.recorded:
        op.record(program, offsets)
    return Recorded(program, offsets[ops.states], offsets[ops.selected], offsets[logits])


def _shape(
    plan: CorePlan, spec: DecoderSpec, share: CpuShare | None, max_positions: int, kv: Kv, workspace: int
) -> Shape:
    """Return the plan's largest batch, and the model's numbers.

    Args:
        workspace: floats of all values.
    """
    held = spec if share is None else share.heads(spec)
    return Shape(
        workspace=workspace,
        max_tokens=plan.max_prefill_tokens,
        max_sequences=plan.max_rows,
        max_logits=plan.max_rows,
        max_positions=max_positions,
        layers=spec.num_layers,
        heads=held.num_heads,
        kv_heads=held.num_kv_heads,
        head_dim=spec.head_dim,
        block_size=plan.block_size,
        kv=kv,
        vocab=spec.vocab_size,
        adapters=plan.lora_max_num,
        rank=0 if share is None else share.rank,
        ranks=plan.tensor_parallel,
    )
