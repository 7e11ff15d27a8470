"""The steps of `make gpu-check` that compute, each in a process of its own.

    python -m bench.gpu.steps DEVICE STEP

does one, and prints what it found as its last line.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from bench.gpu.library import NoLibrary, find

if TYPE_CHECKING:
    from headrace_engine.backends.cuda.device.device import Device

FOUND = "found: "
"""Before the figures."""

_EVERYWHERE = ("numpy", "torch", "pytest", "transformers")
NEEDED = {"cuda": (*_EVERYWHERE, "cupy"), "sim": _EVERYWHERE}
"""Packages that the steps import."""

Figures = Mapping[str, Any]


class Unusable(Exception):
    """The machine lacks something; says what to do."""


def environment(device: str) -> Figures:
    """Return the card's name, and versions.

    Raises:
        Unusable: a package is missing, or there is no usable card.
    """
    versions = {}
    for name in NEEDED[device]:
        try:
            versions[name] = str(importlib.import_module(name).__version__)
        except Exception as error:
            wanted = "cupy-cuda13x" if name == "cupy" else name
            raise Unusable(f"{name} cannot be imported ({error}): pip install {wanted}") from error
    if device == "sim":
        return {"card": "sim", "versions": versions}
    import torch
    from headrace_engine.backends.cuda.device import cards
    from headrace_engine.errors import HeadraceError

    try:
        cards.check_card(0)
    except HeadraceError as error:
        raise Unusable(error.message) from error
    driver = cards.driver_version()
    properties = torch.cuda.get_device_properties(0)
    return {
        "card": properties.name,
        "versions": versions,
        "driver's CUDA": None if driver is None else cards.shown_version(driver),
        "capability": [properties.major, properties.minor],
        "multiprocessors": properties.multi_processor_count,
        "bytes": properties.total_memory,
    }


def library(device: str) -> Figures:
    """Find or build the library, and load it.

    Raises:
        Unusable: there is none that fits.
    """
    import os

    from headrace_engine.environment import NATIVE_VARIABLE
    from headrace_engine.native import NativeUnavailable, load

    try:
        folder = find(device)
        os.environ[NATIVE_VARIABLE] = str(folder)
        load("cuda" if device == "cuda" else "sim")
    except (NoLibrary, NativeUnavailable) as error:
        raise Unusable(str(error)) from error
    return {"folder": str(folder)}


def limits(device: str) -> Figures:
    """Measure a copy and a product."""
    from bench.gpu.plans import PLANS
    from bench.gpu.timing import limits as measured

    plan = PLANS[device]
    copied, multiplied = measured(opened(device), plan.copied, plan.side, plan.scale.repeats)
    return {"copy_bytes_s": copied, "product_ops_s": multiplied}


def ops(device: str, group: str) -> Figures:
    """Measure a group of ops; return seconds by name."""
    from bench.gpu.ops import Ops
    from bench.gpu.plans import PLANS

    plan = PLANS[device]
    return Ops(plan.layer, opened(device), plan.scale).measure(group)


def decode(device: str, name: str, kind: str) -> Figures:
    """Measure a decoder; return figures by batch."""
    from bench.gpu import decode
    from bench.gpu.plans import PLANS

    plan = PLANS[device]
    found = decode.measure(plan.shapes[name], opened(device), plan.load, sampling=decode.KINDS[kind])
    return {"batches": [asdict(each) for each in found]}


def by_torch(device: str, name: str, kind: str) -> Figures:
    """Measure a decoder by the torch backend; return figures by batch."""
    from bench.gpu import oracle
    from bench.gpu.decode import KINDS
    from bench.gpu.plans import PLANS

    plan = PLANS[device]
    found = oracle.measure(plan.shapes[name], opened(device).torch, plan.load, KINDS[kind])
    return {"batches": [asdict(each) for each in found]}


def tokens(device: str) -> Figures:
    """Compare greedy ids with those of the torch backend; return how many there were."""
    from bench.gpu import oracle
    from bench.gpu.plans import PLANS

    plan = PLANS[device]
    found = oracle.compare(plan.shapes[plan.compared], opened(device), oracle.PROMPTS, plan.new)
    return {"ids": found.runs, "parted": len(found.split), "smallest gap": found.smallest_gap}


def sanitized(device: str, tool: str, file: str) -> Figures:
    """Run a file of tests under a tool of NVIDIA's sanitizer; return how many passed."""
    from bench.gpu.kernel_tests import WHICH
    from bench.gpu.parts import sanitizer

    return sanitizer.checked(WHICH[device], tool, file)


def opened(device: str) -> Device:
    """Return the device."""
    if device == "sim":
        from support.sim.device import SimDevice

        return SimDevice()
    from headrace_engine.backends.cuda.device.device import CudaDevice

    return CudaDevice(0)


KINDS: Mapping[str, Callable[..., Figures]] = {
    "environment": environment,
    "library": library,
    "limits": limits,
    "ops": ops,
    "decode": decode,
    "torch": by_torch,
    "tokens": tokens,
    "sanitizer": sanitized,
}
"""What does a step, by what its name begins with; its arguments are the device, and what follows in the name."""


def compute(device: str, step: str) -> Figures:
    """Do a step by its name."""
    kind, *rest = step.split(":")
    return KINDS[kind](device, *rest)


def main() -> int:
    """Do the step that the command line names."""
    try:
        found = compute(*sys.argv[1:])
    except Unusable as error:
        print(error)
        return 1
    print(FOUND + json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
