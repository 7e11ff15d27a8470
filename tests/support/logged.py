"""What one package logged, whatever else of this process logs meanwhile."""

from __future__ import annotations

import pytest


def logged(caplog: pytest.LogCaptureFixture, package: str = "headrace") -> list[str]:
    """Return the captured messages of the loggers of a package."""
    records = [record for record in caplog.records if f"{record.name}.".startswith(f"{package}.")]
    return [record.getMessage() for record in records]
