"""Mixtures of experts in plain torch, one expert after the other over its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from headrace_engine.backends.torch.linear import linear
from headrace_engine.models.experts import Expert, Shared
from headrace_engine.models.spec import ExpertsSpec

_LEAST_SUM = 1e-20
"""Added to sums of sigmoids, which may all be 0."""
_LEAST_SHARE = 1e-12
"""Least sum of weights of softmax that divides them, where a correction may have chosen others than the highest."""


def route(scores: Tensor, spec: ExpertsSpec, correction: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the experts of each row, highest score first, and their weights in float32, [rows, used] each."""
    scores = scores.float().sigmoid() if spec.sigmoid else scores.float()
    compared = scores
    if correction is not None:
        compared = (scores if spec.sigmoid else scores.softmax(1)) + correction.float()
    if spec.groups_used < spec.groups:
        compared = _of_groups(compared, spec)
    chosen = compared.sort(dim=1, descending=True, stable=True).indices[:, : spec.used]
    return chosen, _weights(scores, chosen, spec) * spec.scale


def _of_groups(compared: Tensor, spec: ExpertsSpec) -> Tensor:
    """Return what experts are chosen by, where those of groups that a row does not use have less than any number."""
    grouped = compared.unflatten(1, (spec.groups, -1))
    by_group = grouped.topk(2 if spec.corrected else 1, dim=2).values.sum(2)
    used = by_group.sort(dim=1, descending=True, stable=True).indices[:, : spec.groups_used]
    unused = torch.ones_like(by_group, dtype=torch.bool).scatter(1, used, False)
    left: Tensor = grouped.masked_fill(unused[..., None], -torch.inf).flatten(1)
    return left


def _weights(scores: Tensor, chosen: Tensor, spec: ExpertsSpec) -> Tensor:
    if spec.sigmoid:
        weights = scores.gather(1, chosen)
        return weights / (weights.sum(1, keepdim=True) + _LEAST_SUM) if spec.normalised else weights
    if spec.mixer_threshold:
        return _mixer_weights(scores, chosen, spec.mixer_threshold)
    if spec.normalised and not spec.corrected:
        return scores.gather(1, chosen).softmax(1)
    weights = scores.softmax(1).gather(1, chosen)
    return weights / weights.sum(1, keepdim=True).clamp(min=_LEAST_SHARE) if spec.normalised else weights


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
    correction: Tensor | None = None,
) -> Tensor:
    """Return the weighted sums of the outputs of each row's experts, [rows, hidden].

    A row is added to by its experts in their order, whatever other rows there are.

    Args:
        linear: multiplies rows with a matrix of an expert.
        correction: see Ops.experts.
    """
    chosen, weights = route(scores, spec, correction)
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
