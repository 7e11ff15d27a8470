"""Builds the repository's distributions as a release does: an sdist, and from it alone a wheel."""

import hashlib
import os
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = ("proto", "client", "gateway", "engine_service")
ENVIRONMENTS = ROOT / "build" / "packaging"
CMAKE = ("-C", "cmake.define.CORE_CUDA=OFF", "-C", "cmake.build-type=None")
"""Without optimization: what is tested is what a wheel carries, and the compiler takes a fifth of the time."""


@dataclass(frozen=True)
class Distribution:
    """One built distribution.

    Attributes:
        sdist, wheel: the two archives.
    """

    sdist: Path
    wheel: Path

    @cached_property
    def sources(self) -> frozenset[str]:
        """Names in the sdist, without its top folder."""
        with tarfile.open(self.sdist) as archive:
            return frozenset(name.partition("/")[2] for name in archive.getnames())

    @cached_property
    def files(self) -> frozenset[str]:
        """Names in the wheel."""
        with zipfile.ZipFile(self.wheel) as archive:
            return frozenset(archive.namelist())

    @property
    def metadata(self) -> Message:
        """The wheel's METADATA."""
        return Parser().parsestr(self.text("METADATA"))

    @property
    def requirements(self) -> list[str]:
        """Dependencies of the wheel."""
        return self.metadata.get_all("Requires-Dist", [])

    def text(self, name: str) -> str:
        """Return the text of a file in the wheel's dist-info folder."""
        with zipfile.ZipFile(self.wheel) as archive:
            return archive.read(next(file for file in self.files if file.endswith(f".dist-info/{name}"))).decode()

    def unpack(self, folder: Path) -> Path:
        """Unpack the wheel; its modules can be imported from the folder returned."""
        with zipfile.ZipFile(self.wheel) as archive:
            archive.extractall(folder)
        return folder


def call(*command: str | Path, cwd: Path | None = None, path: Path | None = None) -> str:
    """Run a program that must succeed; return its output.

    Args:
        path: the only folder of Python modules besides the interpreter's own.
    """
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= {"PYTHONPATH": str(path)} if path else {}
    words = [str(part) for part in command]
    done = subprocess.run(
        words, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        pytest.fail(f"{' '.join(words)}\n{done.stdout}", pytrace=False)
    return done.stdout


def pip(python: Path, *arguments: str | Path) -> None:
    """Run this environment's pip on another environment."""
    call(sys.executable, "-m", "pip", "--python", python, *arguments)


def settings(folder: str) -> dict[str, dict[str, list[str]]]:
    """Return a distribution's pyproject.toml."""
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())


def build_environment() -> Path:
    """Return the Python of an environment with only the builds' requirements, and numpy for the native bindings.

    It is created once and kept, under a name that changes with the requirements.
    """
    needs = {need for folder in FOLDERS for need in settings(folder)["build-system"]["requires"]}
    requirements = sorted(needs | {"numpy"})
    name = hashlib.sha256("\n".join([sys.version, *requirements]).encode()).hexdigest()[:16]
    home = ENVIRONMENTS / name
    if not (home / "complete").exists():
        venv.create(home, clear=True)
        pip(home / "bin" / "python", "install", "--quiet", *requirements)
        (home / "complete").touch()
    return home / "bin" / "python"


def build(folder: str, python: Path, target: Path) -> Distribution:
    """Build the sdist of a folder, and the wheel from that sdist alone."""
    backend = settings(folder)["build-system"]["build-backend"]
    call(python, "-c", f"from {backend} import build_sdist; build_sdist({str(target)!r})", cwd=ROOT / folder)
    (sdist,) = target.glob("*.tar.gz")
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-cache-dir")
    pip(python, "wheel", *options, *(CMAKE if "scikit" in str(backend) else ()), "--wheel-dir", target, sdist)
    (wheel,) = target.glob("*.whl")
    return Distribution(sdist, wheel)
