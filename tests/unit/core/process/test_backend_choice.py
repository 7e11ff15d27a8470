"""Which backend `auto` takes, and the one line that says why."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from headrace_engine.backends.cuda import readiness
from headrace_engine.config import ActivationQuant, ComputeDtype, ComputeUnit, ModelFormat
from headrace_engine.errors import InvalidArgument
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.native import NativeUnavailable
from headrace_engine.process import run
from support.models.tiny_models import make_tiny_llama


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card that the kernels run on, and a build whose kernels were checked."""
    monkeypatch.setattr(run, "has_cuda", lambda: True)
    monkeypatch.setattr(run, "why_unchecked", lambda: "")
    monkeypatch.setattr(readiness, "check_card", lambda index: None)
    monkeypatch.setattr(readiness, "load", lambda name: None)
    monkeypatch.setattr(readiness, "import_module", lambda name: None)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> CorePlan:
    path = make_tiny_llama(tmp_path_factory.mktemp("model"), hidden_size=128, num_attention_heads=2, head_dim=64)
    return CorePlan(str(path), ModelFormat.AUTO)


def choose(plan: CorePlan, **changes: Any) -> tuple[str, str]:
    changed = replace(plan, **changes)
    return run.choose_backend(changed.compute_unit, changed)


@pytest.mark.usefixtures("machine")
def test_a_checked_build_on_a_card_takes_the_kernels(plan: CorePlan) -> None:
    assert choose(plan)[0] == choose(plan, compute_unit=ComputeUnit.CUDA)[0] == "cuda"
    assert run.choose_backend(None)[0] == "cuda"
    assert choose(plan, compute_unit=ComputeUnit.CPU)[0] == "cpu"


@pytest.mark.usefixtures("machine")
def test_an_unchecked_build_takes_torch(plan: CorePlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "why_unchecked", lambda: "never checked")
    assert choose(plan) == ("torch", "not cuda: never checked")


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"dtype": ComputeDtype.FLOAT16}, "= FLOAT16 is not supported by the cuda backend"),
        ({"device_list": (0, 1)}, "the cuda backend computes on one device"),
        ({"lora_max_num": 1, "activation_quant": ActivationQuant.INT8}, "together with adapters"),
    ],
)
def test_what_the_kernels_do_not_do_goes_to_torch(plan: CorePlan, changes: dict[str, Any], text: str) -> None:
    backend, why = choose(plan, **changes)
    assert backend == "torch"
    assert text in why


@pytest.mark.usefixtures("machine")
def test_heads_without_a_kernel_go_to_torch(tmp_path: Path) -> None:
    backend, why = choose(CorePlan(str(make_tiny_llama(tmp_path)), ModelFormat.AUTO))
    assert backend == "torch"
    assert "has heads of 16 entries" in why


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("check_card", InvalidArgument.field("config.compute_unit", "= CUDA, but the driver is old")),
        ("load", NativeUnavailable("core_cuda is not there")),
        ("import_module", ImportError("No module named 'cupyx'")),
    ],
)
def test_a_machine_without_a_part_takes_torch(
    plan: CorePlan, monkeypatch: pytest.MonkeyPatch, name: str, error: Exception
) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(readiness, name, fail)
    assert choose(plan) == ("torch", f"not cuda: {error}")
    assert run.choose_backend(None) == ("torch", f"not cuda: {error}")


@pytest.mark.usefixtures("machine")
def test_one_line_says_which_and_why(
    plan: CorePlan, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(run, "why_unchecked", lambda: "never checked")
    with caplog.at_level(logging.INFO, logger=run.__name__):
        run.make_runner(plan)
        run.make_runner(replace(plan, backend="torch"))
        run.make_runner(replace(plan, compute_unit=ComputeUnit.CPU))
    assert caplog.messages == ["backend_chosen: auto takes torch: not cuda: never checked"]


SIZES = [
    ({}, (256, 8192)),
    ({"max_batch": 8}, (8, 8192)),
    ({"max_batch": 9000}, (9000, 9000)),
    ({"max_prefill_tokens": 100}, (100, 100)),
    ({"max_prefill_tokens": 4096}, (256, 4096)),
    ({"max_batch": 3, "max_prefill_tokens": 5}, (3, 5)),
    ({"backend": "torch"}, (256, 8192)),
    ({"backend": "cpu"}, (32, 2048)),
    ({"compute_unit": ComputeUnit.CPU}, (32, 2048)),
    ({"compute_unit": ComputeUnit.CUDA}, (256, 8192)),
]


@pytest.mark.parametrize(("changes", "sizes"), SIZES)
def test_steps_are_larger_on_a_card(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], sizes: tuple[int, int]
) -> None:
    left = CorePlan("model", ModelFormat.AUTO, max_batch=0, max_prefill_tokens=0)
    monkeypatch.setattr(run, "has_cuda", lambda: True)
    found = run.with_step_limits(replace(left, **changes))
    assert (found.max_batch, found.max_prefill_tokens) == sizes


def test_where_no_card_was_after_all_steps_are_those_of_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host has a driver, so that the front half left the sizes open."""
    left = CorePlan("model", ModelFormat.AUTO, max_batch=0, max_prefill_tokens=0)
    monkeypatch.setattr(run, "has_cuda", lambda: False)
    found = run.with_step_limits(left)
    assert (found.max_batch, found.max_prefill_tokens) == (32, 2048)
    with pytest.raises(InvalidArgument, match="max_prefill_tokens = 16 is less than max_batch = 32"):
        run.with_step_limits(replace(left, max_prefill_tokens=16))
