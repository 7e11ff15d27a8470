"""Checks of what the cuda backend needs: of the plan, of the model, and of this machine."""

from __future__ import annotations

from importlib import import_module

from headrace_engine.backend_choices import check_choices
from headrace_engine.backends.cuda.device.cards import check_card
from headrace_engine.backends.cuda.mixtures import check_experts
from headrace_engine.backends.planned import open_planned
from headrace_engine.config import ActivationQuant
from headrace_engine.errors import HeadraceError, InvalidArgument
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.models.spec import DecoderSpec
from headrace_engine.native import load

HEAD_DIMS = (64, 80, 96, 128, 192, 256)
"""Head dimensions that the kernels support."""


def check_plan(plan: CorePlan) -> None:
    """Refuse what this backend does not support, as far as that does not depend on the model.

    Raises:
        InvalidArgument: names the field.
    """
    check_choices(plan, "cuda")
    if plan.lora_max_num and plan.activation_quant is not ActivationQuant.NONE:
        text = f"= {plan.activation_quant} is not supported together with adapters (lora_max_num) by the cuda backend"
        raise InvalidArgument.unsupported("config.activation_quant", text)
    if len(plan.device_list) > 1:
        text = f"= {list(plan.device_list)}: the cuda backend computes on one device"
        raise InvalidArgument.unsupported("config.device_list", text)


def check_spec(plan: CorePlan, spec: DecoderSpec) -> None:
    """Refuse a model that this backend does not support.

    Raises:
        InvalidArgument: names the field.
    """
    if spec.head_dim not in HEAD_DIMS:
        allowed = ", ".join(map(str, HEAD_DIMS))
        text = f"has heads of {spec.head_dim} entries, which the cuda backend does not support; allowed: {allowed}"
        raise InvalidArgument.unsupported("config.model_path", text)
    check_experts(plan, spec)


def why_no_device(index: int = 0) -> str:
    """Return why this backend cannot compute on a card of this machine; "" if it can."""
    try:
        check_card(index)
        load("cuda")
        import_module("cupyx")
    except (HeadraceError, ImportError) as error:
        return str(error)
    return ""


def why_not(plan: CorePlan) -> str:
    """Return why this backend cannot compute a plan on this machine; "" if it can."""
    try:
        check_plan(plan)
        problem = why_no_device(plan.device_list[0] if plan.device_list else 0)
        if not problem:
            check_spec(plan, open_planned(plan).spec)
    except HeadraceError as error:
        return str(error)
    return problem
