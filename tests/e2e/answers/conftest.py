"""Answers are held to their references at the lowest instruction set of all machines, and at the best of this one."""

from __future__ import annotations

import pytest
from support.backends.isa_levels import BEST, NAMES, at_levels, level  # noqa: F401  # the fixture

COMPUTING = (
    "test_accuracy.py",
    "test_cpu_smollm2.py",
    "test_penalties.py",
    "test_prefix_answers.py",
    "test_reference.py",
    "test_same_prompt.py",
    "test_smollm2.py",
)
"""What the instruction set has a part in. Those between are held to the same bounds by tests of operations."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Has the tests that compute run at both."""
    at_levels(metafunc, (NAMES[0], BEST), COMPUTING)
