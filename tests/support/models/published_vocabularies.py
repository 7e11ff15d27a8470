"""Vocabularies that llama.cpp publishes with sample texts, and the ids of these by their original tokenizers."""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "vocabularies"
_SEPARATOR = "\n__ggml_vocab_test__\n"


def unpack(name: str, folder: Path) -> Path:
    """Unpack a vocabulary of this repository into a folder, as a GGUF file with its texts and ids next to it."""
    path = folder / name
    path.write_bytes(lzma.decompress((FOLDER / f"{name}.xz").read_bytes()))
    for suffix in (".inp", ".out"):
        Path(f"{path}{suffix}").write_bytes((FOLDER / f"{name}{suffix}").read_bytes())
    return path


def published_ids(path: Path) -> Iterator[tuple[str, list[int]]]:
    """Return the texts of a vocabulary with their ids, from the files next to it."""
    texts = Path(f"{path}.inp").read_bytes().decode().removesuffix(_SEPARATOR).split(_SEPARATOR)
    lines = Path(f"{path}.out").read_text(encoding="utf-8").splitlines()
    yield from zip(texts, ([int(number) for number in line.split()] for line in lines), strict=True)
