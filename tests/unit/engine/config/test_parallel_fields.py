"""What several ranks cannot share is refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from headrace_engine.config import ComputeUnit, RuntimeConfig, Speculation, TensorParallelMode
from headrace_engine.engine.config.parallel_fields import check_shares
from headrace_engine.engine.config.runtime import check_config
from headrace_engine.errors import InvalidArgument
from headrace_engine.models.catalogue import open_model
from support.models.tiny_models import make_tiny_llama


def refusal(backend: str = "torch", **fields: Any) -> tuple[str, str]:
    with pytest.raises(InvalidArgument) as error:
        check_config(RuntimeConfig(model_name="m", model_path="p", **fields), backend)
    return error.value.reason, error.value.message


@pytest.mark.parametrize(
    ("fields", "reason", "text"),
    [
        (
            {"speculation": Speculation.DRAFT, "draft_model": "d"},
            "NOT_SUPPORTED",
            "config.tensor_parallel = 2, and speculation is DRAFT: ranks do not share a draft model yet; allowed: 1",
        ),
        (
            {"compute_unit": ComputeUnit.CPU_NUMA},
            "NOT_SUPPORTED",
            "config.tensor_parallel = 2, and compute_unit is CPU_NUMA, which shares matrices by memory nodes already; "
            "allowed: 1",
        ),
        (
            {"device_list": (0, 1, 2)},
            "INVALID_FIELD",
            "config.device_list = [0, 1, 2], but tensor_parallel is 2: name a device for each rank, or none",
        ),
        (
            {"num_threads": 1},
            "INVALID_FIELD",
            "config.num_threads = 1, but tensor_parallel is 2: each rank takes a thread; allowed: 0, or 2 and more",
        ),
    ],
)
def test_fields_that_do_not_go_with_ranks_are_refused(fields: dict[str, Any], reason: str, text: str) -> None:
    assert refusal("cpu", tensor_parallel=2, **fields) == (reason, text)


def test_a_mode_needs_ranks() -> None:
    text = "config.tensor_parallel_mode = REDUCED is set, but tensor_parallel is 1: it has no effect"
    assert refusal(tensor_parallel_mode=TensorParallelMode.REDUCED) == ("INVALID_FIELD", text)


def test_cuda_has_no_ranks() -> None:
    text = "tensor_parallel = 2 is not supported by the cuda backend; allowed: 1"
    assert refusal("cuda", tensor_parallel=2) == ("NOT_SUPPORTED", text)


def test_ranks_must_divide_the_kv_heads(tmp_path: Path) -> None:
    files = open_model(str(make_tiny_llama(tmp_path, hidden_size=96, num_attention_heads=12, num_key_value_heads=6)))
    config = RuntimeConfig(model_name="m", model_path="p", tensor_parallel=4)
    with pytest.raises(InvalidArgument) as error:
        check_shares(config, files)
    assert error.value.message == (
        "config.tensor_parallel = 4 does not divide the 6 KV heads of the model; allowed: 1, 2, 3, 6"
    )
