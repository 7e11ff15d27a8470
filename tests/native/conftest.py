"""Builds the native libraries once a session, and gives each test a library to call."""

import os
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from headrace_engine.environment import NATIVE_VARIABLE
from headrace_engine.native import Cpu, Isa, Native, load, machine_isas
from native.build import BUILD_LIMIT, HAS_NVCC, build_native, cmake
from native.samplers import DeviceSampler, ProgramSampler, Samplers
from native.sim_runs import SHAPE
from support.backends.isa_levels import NAMES as ISA_NAMES
from support.backends.isa_levels import forced
from support.models.tiny_models import make_tiny_llama
from support.sim.device import SimDevice

SANITIZE = "-O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"


def sim_option() -> str:
    return f"-DCORE_SIM={'ON' if HAS_NVCC else 'OFF'}"


def need_sim() -> None:
    if not HAS_NVCC:
        pytest.skip("the simulator needs CUDA's headers, and there is no nvcc")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test that needs a build waits for it, on a busy machine for longer than a test may take."""
    for item in items:
        if Path(__file__).parent in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(BUILD_LIMIT))


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Random inputs that the seed printed at the head of the run brings back."""
    torch.manual_seed(random.getrandbits(32))


@pytest.fixture(scope="session")
def programs() -> Path:
    """Folder of the libraries for the CPU and the C++ test programs, built from this tree."""
    return build_native()


@pytest.fixture(scope="session")
def sanitized_programs() -> Path:
    """Folder of the C++ test programs, built with AddressSanitizer and UndefinedBehaviorSanitizer."""
    need_sim()
    isas = ";".join(isa.name.lower() for isa in machine_isas(load("cpu")))
    options = ("-DCORE_CUDA=OFF", sim_option(), "-DCMAKE_BUILD_TYPE=Debug", f"-DCMAKE_CXX_FLAGS={SANITIZE}")
    targets = ("norm_sim", "kv_sim", "rows_sim", "program_cpu", "sim_cases", "tensor_cases")
    return cmake("native-sanitized", "tests/native", *options, f"-DCORE_ISAS={isas}", targets=targets)


@pytest.fixture(scope="session")
def libraries(request: pytest.FixtureRequest) -> Path:
    """Folder of the libraries for the CPU: the one that the environment names, else built from this tree."""
    override = os.environ.get(NATIVE_VARIABLE)
    return Path(override) if override else request.getfixturevalue("programs")


@pytest.fixture(scope="module")
def simulator(libraries: Path) -> Iterator[None]:
    """Runners of the simulated device, and of the CPU, open the libraries of this tree."""
    need_sim()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(NATIVE_VARIABLE, str(libraries))
        yield


@pytest.fixture(params=ISA_NAMES)
def isa(request: pytest.FixtureRequest, simulator: None) -> Iterator[None]:
    """The cpu backend computes at each level of the processor."""
    with forced(request.param):
        yield


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model whose heads the kernels of devices take."""
    return make_tiny_llama(tmp_path_factory.mktemp("model"), **SHAPE)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that were launched on the simulated device, in order."""
    names: list[str] = []
    launch = SimDevice.launch

    def counted(self: SimDevice, op: str, args: Any) -> None:
        names.append(op)
        launch(self, op, args)

    monkeypatch.setattr(SimDevice, "launch", counted)
    return names


@pytest.fixture(scope="session")
def cuda_libraries() -> Path:
    """Folder of core_cuda: the one that the environment names, else built here for the card at hand."""
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    override = os.environ.get(NATIVE_VARIABLE)
    options = ("-DCORE_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=native")
    return Path(override) if override else cmake("native-card", "csrc", *options)


@pytest.fixture(params=["sim:forward", "sim:reverse", "sim:random:1", "cuda"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Native:
    """Each library that has the ops of devices; the simulated one in several orders of its threads."""
    return _loaded(request, monkeypatch)


@pytest.fixture(params=["sim:forward", "sim:reverse", "cuda"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Native:
    """Each library that has the ops of devices."""
    return _loaded(request, monkeypatch)


def _loaded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Native:
    """The library, and the order of its threads, that the parameter names."""
    library, _, order = request.param.partition(":")
    if library == "sim":
        need_sim()
        monkeypatch.setenv("CUSIM_ORDER", order)
    folder: Path = request.getfixturevalue("cuda_libraries" if library == "cuda" else "libraries")
    monkeypatch.setenv(NATIVE_VARIABLE, str(folder))
    return load(library)


@pytest.fixture
def rng() -> np.random.Generator:
    """Random inputs that the seed printed at the head of the run brings back."""
    return np.random.default_rng(random.getrandbits(32))


@pytest.fixture
def native(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> Native:
    """core_cpu."""
    monkeypatch.setenv(NATIVE_VARIABLE, str(libraries))
    return load("cpu")


_ISAS = [isa for isa in Isa if isa is not Isa.NONE]


@pytest.fixture(params=_ISAS, ids=lambda isa: isa.name.lower())
def cpu(request: pytest.FixtureRequest, native: Native) -> Iterator[Cpu]:
    """Three threads with the kernels of each instruction set that this machine has."""
    with _three_threads(native, request.param) as cpu:
        yield cpu


@pytest.fixture(params=[*(isa.name.lower() for isa in _ISAS), "sim:forward", "sim:reverse", "cuda"])
def samplers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Samplers]:
    """The sampler of programs at each instruction set, and that of each library with the ops of devices."""
    yield from _samplers(request, monkeypatch)


@pytest.fixture(params=[*(isa.name.lower() for isa in _ISAS), "cuda"])
def fast_samplers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Samplers]:
    """The same without the simulated ones, for tests that draw ten thousand times and more."""
    yield from _samplers(request, monkeypatch)


def _samplers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Samplers]:
    isa = Isa.__members__.get(request.param.upper())
    if isa is None:
        yield Samplers(partial(DeviceSampler, _loaded(request, monkeypatch)))
        return
    with _three_threads(request.getfixturevalue("native"), isa) as cpu:
        yield Samplers(partial(ProgramSampler, cpu))


def _three_threads(native: Native, isa: Isa) -> Cpu:
    if isa not in machine_isas(native):
        pytest.skip(f"this machine has no {isa.name}")
    return Cpu(native, 3, isa=isa)
