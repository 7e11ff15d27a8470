"""Builds the native libraries and the C++ test programs with CMake, incrementally, under `build/`."""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import headrace_engine
import pytest
from headrace_engine.environment import NATIVE_VARIABLE

ROOT = Path(__file__).parents[2]
NVCC = os.environ.get("CUDACXX", "nvcc")
BUILD_LIMIT = 1500
"""Seconds that a test may take which builds something first."""
HAS_NVCC = shutil.which(NVCC) is not None


def run(*command: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a program; its output is captured, with stderr in stdout."""
    return subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, **(env or {})},
    )


def require(*command: str | Path) -> str:
    """Runs a program that must succeed; returns its output."""
    result = run(*command)
    if result.returncode != 0:
        pytest.fail(f"{' '.join(str(part) for part in command)}\n{result.stdout}", pytrace=False)
    return result.stdout


def native_libraries() -> Path:
    """Folder of the libraries for the CPU and the C++ test programs: the one of the environment, or built here."""
    override = os.environ.get(NATIVE_VARIABLE)
    return Path(override) if override else build_native()


def build_native() -> Path:
    """Builds the simulator and the C++ test programs from this tree, beside the core_cpu that is installed."""
    installed = f"-DCORE_CPU_LIBRARY={installed_core()}"
    sim = f"-DCORE_SIM={'ON' if HAS_NVCC else 'OFF'}"
    return cmake("native", "tests/native", "-DCORE_CUDA=OFF", installed, sim, "-DCMAKE_COMPILE_WARNING_AS_ERROR=ON")


def installed_core() -> Path:
    """The installed core_cpu, which `make` has built from this tree; fails where its sources have changed since."""
    paths = (Path(root) / "lib" / "libcore_cpu.so" for root in headrace_engine.__path__)
    path = next(path for path in paths if path.is_file())
    sources = [each for pattern in ("core*.h", "cpu/**/*.*", "common/*.*") for each in (ROOT / "csrc").glob(pattern)]
    changed = [each for each in sources if each.stat().st_mtime > path.stat().st_mtime]
    if changed:
        pytest.fail(f"{changed[0]} has changed since core_cpu was installed: make .venv/.installed", pytrace=False)
    return path


def cmake(name: str, source: str, *options: str, targets: tuple[str, ...] = ("all",)) -> Path:
    """Configures and builds `source` in build/`name`, what has changed only; returns that folder."""
    folder = ROOT / "build" / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        require("cmake", "-S", ROOT / source, "-B", folder, "-G", "Ninja", *options)
        require("cmake", "--build", folder, "--target", *targets)
    return folder
