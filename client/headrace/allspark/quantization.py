"""DashInfer's arguments for quantized weights, as fields of an install."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace._values.refusals import invalid

_WEIGHTS = {"int8": "INT8", "uint8": "INT8", "int4": "INT4", "uint4": "INT4", "fp8_e4m3": "NONE"}
_KEYS = ("quant_method", "weight_format", "weight_bits", "compute_method", "activate_format", "group_size")


def quant_fields(
    enable_quant: bool, weight_only_quant: bool, customized_quant_config: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the install fields for the arguments of `serialize`.

    Args:
        enable_quant: quantize weights to 8-bit integers, or as the dict says.
        weight_only_quant: compute in the model's dtype; otherwise in 8-bit integers too.
        customized_quant_config: `quant_method` "instant_quant", `weight_format` "int8", "uint8", "int4", "uint4" or
            "fp8_e4m3", `compute_method` "weight_only" (the default) or "activate_quant", and `group_size`, -1 for one
            scale a row. Its `compute_method` replaces `weight_only_quant`.

    Raises:
        InvalidRequestError: the dict has an unknown key or value, or is given without enable_quant.
    """
    if customized_quant_config is None:
        return _fields("int8", weight_only_quant, None) if enable_quant else {}
    if not enable_quant:
        raise invalid("enable_quant", enable_quant, "True if customized_quant_config is given")
    config = dict(customized_quant_config)
    for key in config:
        if key not in _KEYS:
            raise invalid("customized_quant_config", key, f"one of {', '.join(_KEYS)}")
    method, how = config.get("quant_method", "instant_quant"), config.get("compute_method", "weight_only")
    if method != "instant_quant":
        raise invalid("quant_method", method, '"instant_quant"; files that are quantized already are read as they are')
    if how not in ("weight_only", "activate_quant"):
        raise invalid("compute_method", how, '"weight_only" or "activate_quant"')
    stored = config.get("weight_format", {8: "int8", 4: "int4"}.get(config.get("weight_bits", 8)))
    if stored not in _WEIGHTS:
        raise invalid("weight_format", stored, f"one of {', '.join(_WEIGHTS)}")
    return _fields(stored, how == "weight_only", config.get("group_size"))


def _fields(stored: str, weight_only: bool, group_size: int | None) -> dict[str, Any]:
    if stored == "fp8_e4m3":
        if weight_only:
            raise invalid("compute_method", "weight_only", '"activate_quant" with weight_format "fp8_e4m3"')
        return {"activation_quant": "FP8"}
    fields: dict[str, Any] = {"weight_quant": _WEIGHTS[stored]}
    if group_size is not None:
        fields["weight_quant_group_size"] = max(group_size, 0)
    return fields if weight_only else {**fields, "activation_quant": "INT8"}
