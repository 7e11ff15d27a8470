"""The contract, row by row, and the test that checks each row.

A test is "file::function" below tests/. Rows of this suite run on all three paths; rows of e2e/ and unit/ need real
processes, a clock of their own, or a state that no caller can bring about.
"""

from __future__ import annotations

from support.contract import config, requests, results

CONTRACT = requests.ROWS | results.ROWS | config.ROWS


def rows() -> list[tuple[str, str, tuple[str, ...]]]:
    """Return section, row and tests of everything above."""
    return [(section, row, tests) for section, rows in CONTRACT.items() for row, tests in rows.items()]
