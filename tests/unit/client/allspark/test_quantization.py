"""DashInfer's arguments for quantized weights."""

from __future__ import annotations

from typing import Any

import pytest
from headrace import InvalidRequestError
from headrace.allspark.quantization import quant_fields

BOTH = {"weight_quant": "INT8", "activation_quant": "INT8"}


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        ((False, False, None), {}),
        ((False, True, None), {}),
        ((True, True, None), {"weight_quant": "INT8"}),
        ((True, False, None), BOTH),
        ((True, False, {"quant_method": "instant_quant", "weight_format": "int8"}), {"weight_quant": "INT8"}),
        ((True, True, {"weight_format": "int8", "compute_method": "activate_quant", "group_size": -1}),
         {**BOTH, "weight_quant_group_size": 0}),
        ((True, True, {"weight_format": "uint4", "group_size": 64}),
         {"weight_quant": "INT4", "weight_quant_group_size": 64}),
        ((True, True, {"weight_bits": 4}), {"weight_quant": "INT4"}),
        ((True, True, {"weight_format": "fp8_e4m3", "compute_method": "activate_quant"}), {"activation_quant": "FP8"}),
    ],
)  # fmt: skip
def test_its_fields(arguments: tuple[bool, bool, Any], fields: dict[str, Any]) -> None:
    assert quant_fields(*arguments) == fields


@pytest.mark.parametrize(
    ("enabled", "config", "field"),
    [
        (False, {"weight_format": "int8"}, "enable_quant"),
        (True, {"quant_method": "gptq"}, "quant_method"),
        (True, {"weight_format": "int3"}, "weight_format"),
        (True, {"weight_bits": 3}, "weight_format"),
        (True, {"compute_method": "fast"}, "compute_method"),
        (True, {"weight_format": "fp8_e4m3"}, "compute_method"),
        (True, {"group_settings": {}}, "customized_quant_config"),
    ],
)
def test_what_is_not_known_is_refused_by_name(enabled: bool, config: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError, match=field):
        quant_fields(enabled, False, config)
