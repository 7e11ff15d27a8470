"""Parts of a row of a step: changes to its logits, logits processors, and prompt logprobs."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace_engine.generation_config import LogitsProcessor


@dataclass(slots=True)
class LogitChanges:
    """Changes to a sequence's logits before top_k, top_p and min_p: penalties, then biases, then the allowed ids.

    Arithmetic is in float32, and results stay finite. Ids outside the vocabulary are ignored. The arrays belong to the
    sequence: they are valid for one step and change before the next.

    Attributes:
        repetition: multiplies negative logits of the penalized ids, and divides the others; float32.
        penalized: distinct ids.
        penalties: amount subtracted from the logit of each of them, after the repetition penalty.
        biased: distinct ids.
        biases: amount added to the logit of each of them.
        allowed: bit mask of the ids that may be sampled: bit i % 32 of word i // 32 for id i; ids beyond the last
            word may not. None: all may.
    """

    repetition: float = 1.0
    penalized: array[int] = field(default_factory=lambda: array("i"))
    penalties: array[float] = field(default_factory=lambda: array("d"))
    biased: array[int] = field(default_factory=lambda: array("i"))
    biases: array[float] = field(default_factory=lambda: array("d"))
    allowed: array[int] | None = None


@dataclass(frozen=True, slots=True)
class Processing:
    """The operator's logits processors, which change a sequence's logits after LogitChanges.

    Attributes:
        processors: the processors, in call order.
        ids: all ids of the sequence, prompt and generated. Belongs to the sequence, and grows with its next step.
    """

    processors: Sequence[LogitsProcessor]
    ids: array[int]


@dataclass(frozen=True, slots=True)
class PromptIds:
    """Requests prompt logprobs from a step.

    Attributes:
        first: index of the step's token whose logits give the logprob of the first of `ids`: each token predicts the
            next one.
        ids: the prompt ids to report; at most as many as the step has tokens from `first` on.
        top: number of top logprobs to report with each.
    """

    first: int
    ids: Sequence[int]
    top: int = 0


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Prompt logprobs that a PromptIds requested, by the model's own logits.

    Attributes:
        logprobs: log-softmax at each of the ids.
        top_ids: the most likely ids at the position of each, flattened; as many as were requested, or the vocabulary
            has; most likely first, ties by lowest id.
        top_logprobs: log-softmax of each of them.
    """

    logprobs: Sequence[float]
    top_ids: Sequence[int] = ()
    top_logprobs: Sequence[float] = ()
