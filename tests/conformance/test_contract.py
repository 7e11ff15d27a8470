"""Every row of the contract has a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.contract.rows import rows

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("test", sorted({test for _, _, tests in rows() for test in tests}))
def test_a_row_is_held_by_a_test_that_exists(test: str) -> None:
    file, _, function = test.partition("::")
    text = (TESTS / file).read_text()
    name = "test_" if function == "*" else rf"{re.escape(function)}\("
    assert re.search(rf"^ *(async )?def {name}", text, re.MULTILINE), f"{test} is not there"
