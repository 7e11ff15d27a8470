"""Ways to damage or change the files of a model."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from headrace_engine.errors import BadModel
from headrace_engine.models.catalogue import open_model

from support.models.json_files import read_json, write_json


@contextmanager
def bounded_memory(most: int) -> Iterator[None]:
    """Assert that what is done inside takes at most so many bytes at once."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < most


def cut_end(path: Path, count: int) -> int:
    """Cut the last bytes off a file; return its size before."""
    content = path.read_bytes()
    path.write_bytes(content[:-count])
    return len(content)


def read_header(path: Path) -> dict[str, Any]:
    """Return the JSON header of a safetensors file."""
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header: dict[str, Any] = json.loads(content[8 : 8 + length])
    return header


def edit_header(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change the header of a safetensors file, but not the values."""
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = read_header(path)
    edit(header)
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + content[8 + length :])


def edit_json(path: Path, **changes: Any) -> None:
    """Set fields of a JSON file."""
    write_json(path, {**read_json(path), **changes})


def rename_tensor(path: Path, old: str, new: str) -> None:
    """Rename a tensor of a safetensors file."""
    edit_header(path, lambda header: header.update({new: header.pop(old)}))


def overwrite(path: Path, place: int, content: bytes) -> None:
    """Replace bytes in the middle of a file."""
    with path.open("r+b") as file:
        file.seek(place)
        file.write(content)


def refusal(path: Path, **arguments: Any) -> str:
    """Return the message with which open_model refuses a bad model."""
    with pytest.raises(BadModel) as caught:
        open_model(str(path), **arguments)
    return caught.value.message
