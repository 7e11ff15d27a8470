"""The instruction sets of this machine's processor: tests of code that uses core_cpu run at each of them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest
from headrace_engine.environment import ISA_VARIABLE, forced_isa
from headrace_engine.native import Isa, choose_isa, load, machine_isas

NAMES = [isa.name.lower() for isa in Isa if isa is not Isa.NONE]
"""All levels, lowest first; a level that the machine does not support is skipped by name."""
BEST = "best"
"""Best level of the machine, or the one that the tests' environment names."""


@contextmanager
def forced(name: str) -> Iterator[None]:
    """Make cores compute at one level, including cores in processes that a test starts."""
    if Isa[name.upper()] not in machine_isas(load("cpu")):
        pytest.skip(f"this machine has no {name}")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(ISA_VARIABLE, name)
        yield


def lowest() -> AbstractContextManager[None]:
    """Make cores compute at the lowest level, unless the tests' environment names one."""
    return nullcontext() if forced_isa(os.environ) else forced(NAMES[0])


def at_levels(metafunc: pytest.Metafunc, names: Collection[str], files: Collection[str]) -> None:
    """Run the tests of some files once at each of some levels."""
    if Path(metafunc.module.__file__).name in files:
        metafunc.parametrize("level", names, indirect=True, scope="module")


@pytest.fixture(scope="module", autouse=True)
def level(request: pytest.FixtureRequest) -> Iterator[None]:
    """Level that cores compute at: the best by default. Fixtures that start cores for a module need it.

    For the conftest of folders whose tests compute. Where the best is the lowest, tests of both run at that alone.
    """
    name = getattr(request, "param", BEST)
    if hasattr(request, "param") and name == BEST and choose_isa(load("cpu")) is Isa[NAMES[0].upper()]:
        pytest.skip(f"the best level is {NAMES[0]}")
    with nullcontext() if name == BEST else forced(name):
        yield
