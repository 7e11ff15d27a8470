"""A CUDA device that cannot be used is refused with what to do, before anything is loaded: faked drivers and cards."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch
from headrace_engine.backends.cuda.device import cards
from headrace_engine.errors import InvalidArgument


class Driver:
    """libcuda of some version; None: it fails."""

    def __init__(self, version: int | None) -> None:
        self._version = version

    def cuDriverGetVersion(self, place: Any) -> int:
        if self._version is None:
            return 999
        ctypes.cast(place, ctypes.POINTER(ctypes.c_int))[0] = self._version
        return 0


RECENT = Driver(13000)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two H100 with a new driver and a torch for CUDA, but for what is said to be otherwise."""

    def put(
        *, build: str | None = "13.0", driver: Driver | None = RECENT, count: int = 2, capability: Any = (9, 0)
    ) -> None:
        def library(name: str) -> Driver:
            assert name == "libcuda.so.1"
            if driver is None:
                raise OSError("libcuda.so.1: cannot open shared object file")
            return driver

        monkeypatch.setattr(torch.version, "cuda", build)
        monkeypatch.setattr(cards.ctypes, "CDLL", library)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "NVIDIA Something")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)

    return put


def test_a_machine_that_has_what_it_takes(machine: Any) -> None:
    machine()
    cards.check_card(0)
    cards.check_card(1)
    machine(driver=Driver(13020), count=1, capability=(8, 0))
    cards.check_card(0)


LACKING: dict[str, tuple[dict[str, Any], str, list[str]]] = {
    "torch": ({"build": None}, "compute_unit", ["this torch is a CPU build: install one for CUDA"]),
    "driver": ({"driver": None}, "compute_unit", ["there is no NVIDIA driver: install one", "--gpus all"]),
    "answer": ({"driver": Driver(None)}, "compute_unit", ["there is no NVIDIA driver"]),
    "new driver": (
        {"driver": Driver(12080)},
        "compute_unit",
        ["driver is for CUDA 12.8, and this build needs 13.0: update the driver to 580"],
    ),
    "card": ({"count": 0}, "compute_unit", ["shows no device: see nvidia-smi", "CUDA_VISIBLE_DEVICES"]),
    "new card": (
        {"capability": (7, 5)},
        "device_list",
        ["= [0]: NVIDIA Something has compute capability 7.5, and the kernels need 8.0 (A100, RTX 30 and later)"],
    ),
}


@pytest.mark.parametrize("what", LACKING)
def test_an_unusable_machine_is_refused_with_what_to_do(machine: Any, what: str) -> None:
    answers, field, message = LACKING[what]
    machine(**answers)
    with pytest.raises(InvalidArgument) as refusal:
        cards.check_card(0)
    (violation,) = refusal.value.violations
    assert violation.field == f"config.{field}"
    assert all(part in violation.description for part in message)
    if field == "compute_unit":
        assert violation.description.startswith("= CUDA, but ")
        assert violation.description.endswith("; allowed here: CPU")


@pytest.mark.parametrize("index", [-1, 2])
def test_an_unknown_device_is_refused_with_the_known_ones(machine: Any, index: int) -> None:
    machine()
    with pytest.raises(InvalidArgument, match=rf"device_list = \[{index}\] is out of range; allowed for CUDA: 0 to 1"):
        cards.check_card(index)
