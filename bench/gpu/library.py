"""csrc's library for a card: the one that is named, the one built beforehand, or one that nvcc builds now.

    python -m bench.gpu.library FOLDER

notes beside a library which sources it was built from, as `make cuda-all` does: only that of these sources is taken.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from headrace_engine.environment import NATIVE_VARIABLE

ROOT = Path(__file__).parents[2]
BEFOREHAND = ROOT / "build" / "cuda"
"""Where `make cuda-all` builds it."""
_LIBRARY, _NOTE = "libcore_cuda.so", "core_cuda.sources.txt"
_KERNELS = ("csrc/*.h", "csrc/common/*", "csrc/cuda/**/*")
_CHECKED = (*_KERNELS, "engine_service/headrace_engine/backends/cuda/**/*.py")
_MEASURED = ("csrc/**/*.[ch]*", "engine_service/headrace_engine/**/*.py", "bench/gpu/**/*.py")


class NoLibrary(Exception):
    """There is no library, and none can be built; says what to do."""


def code_digest() -> str:
    """Return a digest of all sources that may change a figure."""
    return _digest(_MEASURED)


def checked_digest() -> str:
    """Return a digest of what a check on a card vouches for: the kernels, and what launches them.

    What computes for other backends too is compared with them on CPUs.
    """
    return _digest(_CHECKED)


def kernels_digest() -> str:
    """Return a digest of the kernels' sources."""
    return _digest(_KERNELS)


def find(device: str) -> Path:
    """Return the folder of the library.

    Args:
        device: "cuda" or "sim".

    Raises:
        NoLibrary: the folder that the environment names has none, or nvcc does not build it.
    """
    name = f"libcore_{device}.so"
    if named := os.environ.get(NATIVE_VARIABLE):
        if not (Path(named) / name).is_file():
            raise NoLibrary(f"{NATIVE_VARIABLE} is {named}, where there is no {name}: build it there, or unset it")
        return Path(named)
    if device != "cuda":
        raise NoLibrary(f"{NATIVE_VARIABLE} must name the folder of {name}: make native builds it in build/native")
    return BEFOREHAND if is_current(BEFOREHAND) else _built()


def is_current(folder: Path) -> bool:
    """True if a folder has a library that was built from these sources."""
    note = folder / _NOTE
    return (folder / _LIBRARY).is_file() and note.is_file() and note.read_text() == kernels_digest()


def note_sources(folder: Path) -> None:
    """Note what the library of a folder was built from, just now."""
    (folder / _NOTE).write_text(kernels_digest())


def _built() -> Path:
    """Build the library for the card at hand."""
    folder = ROOT / "build" / "card"
    options = ("-DCORE_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=native")
    build = ("cmake", "--build", str(folder), "--target", "core_cuda", "--parallel")
    for command in (("cmake", "-S", str(ROOT / "csrc"), "-B", str(folder), *options), build):
        try:
            subprocess.run(command, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            advice = "build it where nvcc 13 is, by make cuda-all, and bring build/cuda along"
            raise NoLibrary(f"the library cannot be built here: {error}; {advice}") from error
    return folder


def _digest(patterns: Iterable[str]) -> str:
    digest = sha256()
    for path in sorted({path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()}):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    note_sources(Path(sys.argv[1]))
