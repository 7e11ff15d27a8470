"""All environment variables that the engine reads; docs/environment.md describes them.

Values are checked here as far as possible without the machine: whether it has an instruction set, or a processor, is
checked where these are chosen.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace_engine.errors import InvalidArgument

ATTENTION_VARIABLE = "HEADRACE_CUDA_ATTENTION"
CACHE_VARIABLE = "HEADRACE_CACHE"
PLAIN_VARIABLE = "HEADRACE_CUDA_PLAIN"
HUB_VARIABLE = "HF_ENDPOINT"
ISA_VARIABLE = "HEADRACE_ISA"
MEMORY_RATIO_VARIABLE = "BFC_MEM_RATIO"
LOGS_VARIABLE = "HEADRACE_CHILD_LOGS"
NATIVE_VARIABLE = "HEADRACE_NATIVE_DIR"
NODES_VARIABLE = "HEADRACE_NUMA_NODES"
OVERLAP_VARIABLE = "HEADRACE_OVERLAP"
PROCESSORS_VARIABLE = "HEADRACE_LOGITS_PROCESSORS"

Environment = Mapping[str, str]

KERNELS, FLASHINFER = "kernels", "flashinfer"
"""What may compute attention of prompts on a CUDA device."""

_OVERLAP = {"": True, "1": True, "0": False}


def cache_root(environment: Environment = os.environ) -> Path | None:
    """Return the folder of all caches; None if none is set and the user has no home."""
    if own := environment.get(CACHE_VARIABLE):
        return Path(own)
    try:
        return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"
    except RuntimeError:
        return None


def plain_op_names(environment: Environment = os.environ) -> list[str]:
    """Return the names of ops that torch computes instead of CUDA kernels."""
    return _parts(environment.get(PLAIN_VARIABLE, ""), ",")


def prompt_attention(environment: Environment = os.environ) -> str:
    """Return what computes attention of prompts on a CUDA device: KERNELS or FLASHINFER.

    Raises:
        InvalidArgument: it is something else.
    """
    name = environment.get(ATTENTION_VARIABLE, "") or KERNELS
    if name not in (KERNELS, FLASHINFER):
        text = f'= "{name}" in the environment is unknown; allowed: {KERNELS}, {FLASHINFER}'
        raise InvalidArgument.field(ATTENTION_VARIABLE, text)
    return name


def forced_isa(environment: Environment = os.environ) -> str:
    """Return the name of the instruction set to use; "": the best one of the machine."""
    return environment.get(ISA_VARIABLE, "")


def memory_ratio(environment: Environment = os.environ) -> float | None:
    """Return the default share of memory for the KV cache; None if it is not set.

    Raises:
        InvalidArgument: it is not a number above 0 and at most 1.
    """
    text = environment.get(MEMORY_RATIO_VARIABLE, "")
    if not text:
        return None
    try:
        ratio = float(text)
    except ValueError:
        ratio = 0.0
    if not 0 < ratio <= 1:
        description = f"= {text!r} in the environment is out of range; allowed: above 0, at most 1"
        raise InvalidArgument.field(MEMORY_RATIO_VARIABLE, description)
    return ratio


def native_folder(environment: Environment = os.environ) -> Path | None:
    """Return the folder to take native libraries from; None: the one inside the package."""
    override = environment.get(NATIVE_VARIABLE)
    return Path(override) if override else None


def hub_endpoint(environment: Environment = os.environ) -> str:
    """Return the address of the hub that models come from, as huggingface_hub reads it; "": the public one."""
    return environment.get(HUB_VARIABLE, "")


def announce_logs(settings: Mapping[str, Any]) -> None:
    """Set the logging of processes that are started from now on."""
    os.environ[LOGS_VARIABLE] = json.dumps(settings)


def announced_logs(environment: Environment = os.environ) -> dict[str, Any]:
    """Return the log settings of the service that started this process; {} if none did."""
    settings: dict[str, Any] = json.loads(environment.get(LOGS_VARIABLE) or "{}")
    return settings


def named_nodes(environment: Environment = os.environ) -> str:
    """Return the processors of each memory node, as in "0-3;4-7"; "": as the system reports them."""
    return environment.get(NODES_VARIABLE, "")


def overlaps(environment: Environment = os.environ) -> bool:
    """Return True if CUDA steps are launched while one is in flight.

    Raises:
        InvalidArgument: the value is invalid.
    """
    value = environment.get(OVERLAP_VARIABLE, "")
    if value not in _OVERLAP:
        raise InvalidArgument.field(OVERLAP_VARIABLE, f'= "{value}" in the environment; allowed: 0, 1')
    return _OVERLAP[value]


def logits_processors(environment: Environment = os.environ) -> list[str]:
    """Return the logits processors, each as NAME=FILE."""
    return _parts(environment.get(PROCESSORS_VARIABLE, ""), ";")


def _parts(text: str, separator: str) -> list[str]:
    return [part.strip() for part in text.split(separator) if part.strip()]
