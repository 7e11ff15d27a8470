"""Memory of a step besides weights and pool: measured on CUDA, bounded from the shapes on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from headrace_engine.backends.torch.attention import KEY_TILE
from headrace_engine.backends.torch.batch import QUERY_TILE, TILES_AT_ONCE
from headrace_engine.backends.torch.linear import ROW_TILE
from headrace_engine.backends.torch.sampling.logits import LOGITS_AT_ONCE
from headrace_engine.core.row_fields import PromptIds
from headrace_engine.core.runner import SequenceStep
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.models.spec import DecoderSpec
from headrace_engine.sampling_params import SamplingParams

_SAMPLING_BYTES = 192
"""Peak bytes per logit while sampling: copies in float64, sorted values, ids and random words."""

_PROMPT_LOGIT_BYTES = 64
"""Peak bytes per logit for prompt logprobs, which need no random numbers."""


def rows_at_once(vocab_size: int) -> int:
    """Return the number of rows whose logits are computed together for prompt logprobs."""
    return max(ROW_TILE, LOGITS_AT_ONCE // vocab_size)


def largest_step(plan: CorePlan, max_length: int) -> list[SequenceStep]:
    """Return a full step in a pool of one block: one prompt chunk, and every other sequence at its last position.

    All block tables repeat block 0. Every row uses the costliest sampling: a masked id, and a top_p that sorts and
    leaves nearly every id, each with a random number. The chunk requests prompt logprobs. All have one adapter, where
    there is room for any.
    """
    sampling = SamplingParams(top_p=1 - 2**-53, logprobs=True, top_logprobs=20)
    blocks = [0] * -(-max_length // plan.block_size)
    rows = min(plan.max_rows, plan.max_prefill_tokens)
    chunk = min(max_length, plan.max_prefill_tokens - rows + 1)
    lengths = [chunk, *[1] * (rows - 1)]
    adapter = min(1, plan.lora_max_num)
    steps = [
        SequenceStep([0] * length, max_length - length, blocks, sampling, masked_ids=(1,), adapter=adapter)
        for length in lengths
    ]
    return [replace(steps[0], prompt_logprobs=PromptIds(0, [0] * chunk, 20)), *steps[1:]]


def workspace_bytes(spec: DecoderSpec, plan: CorePlan, itemsize: int) -> int:
    """Bound the memory of a step of max_prefill_tokens tokens, max_rows of them sampled, from its tensors' shapes.

    Args:
        itemsize: bytes of one activation.
    """
    rows, sequences = plan.max_prefill_tokens + plan.max_rows * QUERY_TILE, plan.max_rows
    mlp = max(4 * spec.intermediate_size + 2 * spec.hidden_size, _experts_width(spec))
    attention = 3 * spec.query_width + 3 * spec.kv_width
    if plan.lora_max_num:  # The rows of an adapter, and what it adds to them.
        mlp += 2 * max(spec.intermediate_size, spec.hidden_size)
        attention += 2 * max(spec.query_width, spec.hidden_size)
    activations = rows * ((2 * spec.hidden_size + max(mlp, attention)) * itemsize + 8 * spec.query_width)
    keys = max(KEY_TILE, plan.block_size)
    tile = 3 * spec.num_kv_heads * keys * spec.head_dim + 4 * spec.num_heads * QUERY_TILE * keys
    all_logits = sequences * spec.vocab_size
    sampled = min(all_logits, max(spec.vocab_size, LOGITS_AT_ONCE))
    prompt_logits = min(rows, rows_at_once(spec.vocab_size)) * spec.vocab_size
    logits = max(
        all_logits * (itemsize + 28) + sampled * _SAMPLING_BYTES,
        all_logits * itemsize + prompt_logits * _PROMPT_LOGIT_BYTES,
    )
    return activations + 4 * TILES_AT_ONCE * tile + logits


def _experts_width(spec: DecoderSpec) -> int:
    """Return the entries of a row in a mixture of experts, if one expert takes all rows."""
    experts = spec.experts
    if experts is None:
        return 0
    return 4 * max(experts.width, experts.shared_width) + 5 * spec.hidden_size + 12 * experts.count


def measured_bytes(device: torch.device, step: Callable[[], object]) -> int:
    """Return the peak CUDA memory of a call in addition to that in use before, in bytes."""
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
