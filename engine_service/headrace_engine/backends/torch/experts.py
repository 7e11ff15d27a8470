"""Mixtures of experts in plain torch, one expert after the other over its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from headrace_engine.backends.torch.linear import linear
from headrace_engine.models.experts import Expert, Shared
from headrace_engine.models.spec import ExpertsSpec


def route(scores: Tensor, spec: ExpertsSpec) -> tuple[Tensor, Tensor]:
    """Return the experts of each row, highest score first, and their weights in float32, [rows, used] each."""
    scores = scores.float()
    chosen = scores.sort(dim=1, descending=True, stable=True).indices[:, : spec.used]
    if spec.mixer_threshold:
        return chosen, _mixer_weights(scores, chosen, spec.mixer_threshold)
    if spec.normalised:
        return chosen, scores.gather(1, chosen).softmax(1)
    return chosen, scores.softmax(1).gather(1, chosen)


def _mixer_weights(scores: Tensor, chosen: Tensor, threshold: float) -> Tensor:
    """Return the weights of chosen experts as SparseMixer has them; see ExpertsSpec."""
    left, weights = scores, []
    for expert in chosen.unsqueeze(2).unbind(1):
        most = scores.gather(1, expert)
        far = (most - scores) / scores.abs().maximum(most) > threshold
        weights.append(left.masked_fill(far, -torch.inf).softmax(1).gather(1, expert))
        left = left.scatter(1, expert, -torch.inf)
    return torch.cat(weights, 1)


def routed(
    x: Tensor,
    scores: Tensor,
    experts: Sequence[Expert[Tensor]],
    spec: ExpertsSpec,
    gated: Callable[[Tensor, Tensor], Tensor],
    linear: Callable[[Tensor, Tensor, Tensor | None], Tensor] = linear,
) -> Tensor:
    """Return the weighted sums of the outputs of each row's experts, [rows, hidden].

    A row is added to by its experts in their order, whatever other rows there are.

    Args:
        linear: multiplies rows with a matrix of an expert.
    """
    chosen, weights = route(scores, spec)
    out: Tensor | None = None
    for number in chosen.unique().tolist():
        rows, column = (chosen == number).nonzero(as_tuple=True)
        expert, part = experts[number], x[rows]
        inner = gated(linear(part, expert.gate, expert.gate_bias), linear(part, expert.up, expert.up_bias))
        product = linear(inner, expert.down, expert.down_bias)
        if out is None:
            out = product.new_zeros(len(x), product.shape[1])
        out[rows] += product * weights[rows, column, None].to(x.dtype)
    return torch.zeros_like(x) if out is None else out


def shared_part(shared: Shared[Tensor]) -> Tensor:
    """Return what the expert of all tokens adds."""
    return shared.out if shared.score is None else shared.out * torch.sigmoid(shared.score)
