"""JSON files of models: written and read as tests need them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content` as JSON."""
    path.write_text(json.dumps(content, indent=2), encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content
