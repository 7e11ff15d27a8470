"""The samplers of both kinds of library, as tests call them: logits in, tokens out."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from headrace_engine.backends.cpu.batch import CpuBatch
from headrace_engine.core.row_fields import LogitChanges
from headrace_engine.core.runner import Sampled, SequenceStep
from headrace_engine.native import Cpu, Dtype, Kv, Limit, Memory, Native, Program, Rows, Shape, Value
from headrace_engine.native import LogitChanges as ChangesStruct
from headrace_engine.native import Sampled as SampledStruct
from headrace_engine.native import Sampling as SamplingStruct
from headrace_engine.native.abi import SampleRows
from native.buffers import TORCH, stream_of
from torch import Tensor

_TOP = int(Limit.TOP_LOGPROBS)
_BEYOND = array("I", [2**32 - 1] * 8)
"""Words that lie behind those of allowed ids, and allow nothing."""


class Sampler(Protocol):
    """Draws from logits which the test gives, for up to so many rows."""

    def draw(self, logits: np.ndarray, steps: Sequence[SequenceStep]) -> list[Sampled]:
        """One token a row."""
        ...


@dataclass(frozen=True)
class Samplers:
    """Where samplers come from.

    Attributes:
        make: a sampler for up to so many rows of so many logits.
    """

    make: Callable[[int, int], Sampler]

    def draw(self, logits: np.ndarray, steps: Sequence[SequenceStep]) -> list[Sampled]:
        """One token a row."""
        return self.make(*logits.shape).draw(logits, steps)


class ProgramSampler:
    """A program of core_cpu."""

    def __init__(self, cpu: Cpu, rows: int, vocab: int) -> None:
        scratch = -(-rows * vocab // 16) * 16
        numbers = {"max_positions": 16, "layers": 1, "heads": 1, "kv_heads": 1, "head_dim": 16, "block_size": 16}
        counts = {"max_tokens": rows, "max_sequences": rows, "max_logits": rows}
        self._own = Value(0, vocab, Rows.TOKENS)
        self._program = Program(cpu, Shape(workspace=2 * scratch, vocab=vocab, kv=Kv.FLOAT32, **numbers, **counts))
        self._batch = CpuBatch(self._program.shape)
        logits = Value(scratch, vocab, Rows.LOGITS)
        self._program.select(self._own, logits)
        self._program.sample(logits)
        self._program.bind(Memory(cpu.native, self._program.block_bytes), 1)

    def draw(self, logits: np.ndarray, steps: Sequence[SequenceStep]) -> list[Sampled]:
        """See Sampler."""
        self._program.value(self._own, len(steps))[:] = logits
        self._batch.fill(steps)
        self._program.run(self._batch.struct)
        return list(self._batch.sampled(steps))


class DeviceSampler:
    """The op of a device, whose outputs hold what no draw gives before each call."""

    def __init__(self, device: Native, rows: int, vocab: int, dtype: Dtype = Dtype.FLOAT32) -> None:
        self._device = device
        self._dtype = dtype
        self._scratch = self._filled((rows, vocab), torch.float32, torch.nan)

    def draw(self, logits: np.ndarray, steps: Sequence[SequenceStep]) -> list[Sampled]:
        """See Sampler."""
        rows, vocab = logits.shape
        kept: list[Tensor] = []
        numbers = self._put(torch.from_numpy(logits).to(TORCH[self._dtype]), kept)
        sampling = (SamplingStruct * rows)(*(self._sampling(step, kept) for step in steps))
        sampled = self._filled((rows, ctypes.sizeof(SampledStruct)), torch.uint8, 0xEE)
        ids = self._filled((rows, _TOP), torch.int32, -7)
        logprobs = self._filled((rows, _TOP), torch.float64, torch.nan)
        args = SampleRows(
            logits=numbers,
            sampling=self._put_bytes(bytes(sampling), kept),
            sampled=sampled.data_ptr(),
            top_ids=ids.data_ptr(),
            top_logprobs=logprobs.data_ptr(),
            scratch=self._scratch.data_ptr(),
            rows=rows,
            vocab=vocab,
            dtype=self._dtype,
        )
        self._device.launch("sample_rows", args, stream_of(self._device))
        drawn = (SampledStruct * rows).from_buffer_copy(sampled.cpu().numpy().tobytes())
        tops = [list(zip(*pair, strict=True)) for pair in zip(ids.tolist(), logprobs.tolist(), strict=True)]
        return [_sampled_row(*row, vocab) for row in zip(steps, drawn, tops, strict=True)]

    def _filled(self, shape: tuple[int, ...], dtype: torch.dtype, value: float) -> Tensor:
        return torch.full(shape, value, dtype=dtype, device=self._device.device)

    def _sampling(self, step: SequenceStep, kept: list[Tensor]) -> SamplingStruct:
        params = step.sampling
        assert params is not None
        changes = None
        if step.masked_ids or step.changes is not None:
            struct = self._changes(step.changes or LogitChanges(), step.masked_ids, kept)
            changes = self._put_bytes(bytes(struct), kept)
        return SamplingStruct(
            temperature=params.temperature,
            top_p=params.top_p,
            min_p=params.min_p,
            seed=params.seed,
            changes=changes,
            top_k=min(params.top_k, 2**31 - 1),
            position=step.position,
            index=step.index,
            logprobs=params.logprobs,
            top_logprobs=params.top_logprobs,
        )

    def _changes(self, changes: LogitChanges, masked: Sequence[int], kept: list[Tensor]) -> ChangesStruct:
        allowed = changes.allowed
        return ChangesStruct(
            penalized=self._put_array(changes.penalized, kept),
            penalties=self._put_array(changes.penalties, kept),
            biased=self._put_array(changes.biased, kept),
            biases=self._put_array(changes.biases, kept),
            masked=self._put_array(array("i", masked), kept),
            allowed=None if allowed is None else self._put_array(allowed + _BEYOND, kept),
            repetition=changes.repetition,
            penalized_count=len(changes.penalized),
            biased_count=len(changes.biased),
            masked_count=len(masked),
            allowed_words=0 if allowed is None else len(allowed),
        )

    def _put_array(self, values: array[Any], kept: list[Tensor]) -> int:
        return self._put_bytes(values.tobytes(), kept)

    def _put_bytes(self, values: bytes, kept: list[Tensor]) -> int:
        return self._put(torch.frombuffer(bytearray(values or b"\0"), dtype=torch.uint8), kept)

    def _put(self, values: Tensor, kept: list[Tensor]) -> int:
        """Where the device finds a copy, as long as it is kept."""
        kept.append(values.to(self._device.device).clone())
        return kept[-1].data_ptr()


def _sampled_row(step: SequenceStep, drawn: SampledStruct, tops: list[tuple[int, float]], vocab: int) -> Sampled:
    """What the step was told; nothing else was written."""
    params = step.sampling
    assert params is not None
    if not drawn.finite:
        return Sampled(None, error="logits are not finite")
    if drawn.token < 0:
        return Sampled(None)
    reported = min(params.top_logprobs, vocab)
    assert all(token_id == -7 and np.isnan(value) for token_id, value in tops[reported:])
    return Sampled(drawn.token, drawn.logprob if params.logprobs else None, top=tops[:reported])
