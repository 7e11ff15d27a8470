"""The instruction sets of this machine's processor: what computes with core_cpu is tested at each of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from headrace_engine.environment import ISA_VARIABLE
from headrace_engine.native import Isa, choose_isa, load

NAMES = [isa.name.lower() for isa in Isa if isa is not Isa.NONE]
"""All levels, lowest first; what a machine lacks is skipped by name."""


@contextmanager
def forced(name: str) -> Iterator[None]:
    """Have cores compute at one level, also those of processes that a test starts."""
    if Isa[name.upper()] > choose_isa(load("cpu"), {}):
        pytest.skip(f"this machine has no {name}")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(ISA_VARIABLE, name)
        yield


def at_each_level(metafunc: pytest.Metafunc) -> None:
    """Run a test once at each level: it has a fixture `level`, of the scope of a module."""
    metafunc.parametrize("level", NAMES, indirect=True, scope="module")
