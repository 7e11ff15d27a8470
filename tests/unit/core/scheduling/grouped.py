"""Groups of sequences."""

from __future__ import annotations

from headrace_engine.sampling_params import SamplingParams
from support.core.rig import Rig

PROMPT = list(range(100, 130))


def add_group(rig: Rig, count: int, group: int = 1, prompt: list[int] = PROMPT, **fields: object) -> list[int]:
    """Sequences of one request; returns their keys."""
    sampling = SamplingParams(seed=group, temperature=1.0)
    fields = {"max_new": 10, "sampling": sampling, **fields}
    return [rig.add(prompt, index=index, group=group, **fields) for index in range(count)]  # type: ignore[arg-type]
