"""Messages from a core to the front half; keys are those of `commands`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace_engine.config import ComputeDtype, ComputeUnit
from headrace_engine.errors import (
    BadModel,
    BadProcessor,
    FieldViolation,
    HeadraceError,
    Internal,
    InvalidArgument,
    OutOfMemory,
)
from headrace_engine.ipc.step_output import StepOutput
from headrace_engine.model_types import ModelProgress


@dataclass(frozen=True, slots=True)
class RunnerSizes:
    """The choices and sizes of a backend. Bytes of weights, workspace and pool are in device memory.

    Attributes:
        num_host_blocks: blocks of the host tier, which take host_kv_bytes of host memory.
    """

    devices: tuple[str, ...]
    dtype: ComputeDtype
    compute_unit: ComputeUnit
    num_threads: int
    max_length: int
    num_blocks: int
    weight_bytes: int
    workspace_bytes: int
    kv_bytes: int
    num_host_blocks: int = 0
    host_kv_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CoreReady(RunnerSizes):
    """The core is warmed up: every choice left to it, every size, and `Runner.idle_processors`.

    Attributes:
        max_batch, max_prefill_tokens: those of the plan, with the defaults of the device; 0: not reported.
        lost_adapters: adapters of the plan that could not be loaded, by number, and why.
    """

    max_batch: int = 0
    max_prefill_tokens: int = 0
    idle_processors: Mapping[str, str] = field(default_factory=dict)
    lost_adapters: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AdapterLoaded:
    """Answer to a LoadAdapter.

    Attributes:
        error: why it could not be loaded; "": it was.
    """

    number: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class CoreFailed:
    """The core could not start, or a step failed as a whole. The core exits after it.

    Attributes:
        reason: BAD_MODEL, BAD_PROCESSOR, OUT_OF_MEMORY, INVALID_FIELD, NOT_SUPPORTED or ENGINE_FAULT.
        message: one human-readable sentence.
        field: the invalid field of the runtime config; "" if none is.
    """

    reason: str
    message: str
    field: str = ""

    def error(self) -> HeadraceError:
        """Return the error that it reports."""
        if self.reason == "BAD_MODEL":
            return BadModel(self.message)
        if self.reason == "BAD_PROCESSOR":
            return BadProcessor(self.message)
        if self.reason == "OUT_OF_MEMORY":
            return OutOfMemory(self.message)
        if self.reason in ("INVALID_FIELD", "NOT_SUPPORTED"):
            name = self.field.removeprefix("config.")
            text = self.message.removeprefix("config.").removeprefix(f"{name} ")
            violations = [FieldViolation(self.field, text)] if self.field else []
            return InvalidArgument(self.message, reason=self.reason, violations=violations)
        return Internal(self.message)


@dataclass(frozen=True, slots=True)
class StepBegun:
    """These sequences are in the step that begins now, and in all steps until the next StepBegun.

    Includes those of the step before, if it is still in flight. Sent before the step is computed, so that the front
    half knows which sequences were in the step that crashed the core.
    """

    keys: list[int]


@dataclass(frozen=True, slots=True)
class Pong:
    """Answer to a Ping.

    Attributes:
        progress: inside a step, the runner's progress in arbitrary units; None: the core is between two steps.
    """

    number: int
    progress: int | None = None


CoreMessage = ModelProgress | CoreReady | CoreFailed | AdapterLoaded | StepBegun | StepOutput | Pong
