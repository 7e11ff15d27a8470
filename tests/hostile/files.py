"""Model files that are not what they say, each for a reason of its own."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any


def write_hostile_files(folder: Path, healthy: Path) -> list[Path]:
    """Paths of models, of which none can be installed.

    Args:
        folder: where they go.
        healthy: directory of a model that some of them are made from.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return [
        _fifo(folder / "pipe"),
        _fifo(folder / "pipe.gguf"),
        _with_file(folder, healthy, "a-pipe-for-a-config", _pipe_config),
        _with_file(folder, healthy, "names-twice", _names_twice),
        _with_file(folder, healthy, "long-shapes", _long_shapes),
        _with_file(folder, healthy, "endless-positions", _change("config.json", max_position_embeddings=2**32)),
        _with_file(folder, healthy, "deep-config", _deep_config),
        _with_file(folder, healthy, "no-charsmap", _charsmap),
        _sparse_array(folder / "sparse.gguf"),
    ]


def _fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


def _with_file(folder: Path, healthy: Path, name: str, damage: Any) -> Path:
    path = folder / name
    shutil.copytree(healthy, path)
    damage(path)
    return path


def _pipe_config(path: Path) -> None:
    (path / "config.json").unlink()
    os.mkfifo(path / "config.json")


def _names_twice(path: Path) -> None:
    entry = '{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    entries = [f'"k{number}":{entry}' for number in [*range(20_000), 19_999]]
    _write_header(path, "{" + ",".join(entries) + "}")


def _long_shapes(path: Path) -> None:
    _write_header(
        path,
        json.dumps({"a": {"dtype": "F32", "shape": ["#"], "data_offsets": [0, 0]}}).replace(
            '"#"', ",".join(["9" * 4_000] * 200)
        ),
    )


def _write_header(path: Path, header: str) -> None:
    data = header.encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(data)) + data)


def _change(name: str, **fields: Any) -> Any:
    def damage(path: Path) -> None:
        content = json.loads((path / name).read_text())
        (path / name).write_text(json.dumps(content | fields))

    return damage


def _deep_config(path: Path) -> None:
    (path / "config.json").write_text('{"a":' * 50_000 + "1" + "}" * 50_000)


def _charsmap(path: Path) -> None:
    _change("tokenizer.json", normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"})(path)


def _sparse_array(path: Path) -> Path:
    """An array of 64 Mi bytes that takes no room on the disk."""
    key = b"general.tags"
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 1))
        file.write(struct.pack("<Q", len(key)) + key + struct.pack("<IIQ", 9, 0, 64 << 20))
        file.truncate(file.tell() + (64 << 20))
    return path
