"""Finds and loads the native libraries, and calls their ops."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Literal

import headrace_engine
from headrace_engine.environment import NATIVE_VARIABLE, native_folder
from headrace_engine.native.abi import DIGEST, FUNCTIONS, Code
from headrace_engine.native.errors import NativeError, NativeUnavailable, field_at, shown

Library = Literal["cpu", "cuda", "sim"]
"""Names of the libraries: g++ on the CPU, nvcc on a GPU, and the CUDA sources simulated on the CPU (tests only)."""

_HEADERS: dict[Library, str] = {"cpu": "core_program.h", "cuda": "core_device.h", "sim": "core_device.h"}


class Native:
    """One loaded library. It holds no state: any thread may call any op at any time.

    Attributes:
        library: its name.
        handle: its functions, for the other modules of this package.
        device: type of the device whose memory its ops work on, "cpu" or "cuda".
    """

    def __init__(self, library: Library, handle: ctypes.CDLL) -> None:
        self.library = library
        self.handle = handle
        self.device = "cuda" if library == "cuda" else "cpu"
        for name, (returned, taken) in FUNCTIONS[_HEADERS[library]].items():
            function = getattr(handle, name)
            function.restype, function.argtypes = returned, taken

    def launch(self, op: str, args: ctypes.Structure, stream: int = 0) -> None:
        """Call an op of `csrc/core_device.h`.

        Args:
            op: "rms_norm" for core_rms_norm.
            args: its parameter struct.
            stream: the cudaStream_t to enqueue on; core_sim returns when it is done.

        Raises:
            NativeError: an argument is wrong, or the device refused the launch.
        """
        status = getattr(self.handle, f"core_{op}")(args, stream)
        if status:
            self.check(op, status, args)

    def check(self, op: str, status: int, args: ctypes.Structure | None = None) -> None:
        """Raise the error of a status.

        Args:
            op: name of the called op, for the message.
            status: the returned status.
            args: its parameter struct, if it has one.

        Raises:
            NativeError: the status is not OK; names the op, and the field at fault with its value.
        """
        code, detail = Code(status & 0xFF), status >> 8
        if code is Code.OK:
            return
        text = self.handle.core_status_text(status).decode()
        if code is Code.DEVICE_ERROR:
            raise NativeError(f"{op}: {text} (device error {detail})", code=code, device_error=detail)
        if args is None or not detail:
            raise NativeError(f"{op}: {text}", code=code)
        field = field_at(type(args), detail - 1)
        raise NativeError(f"{op}: {field}{shown(args, field)}: {text}", code=code, field=field)


def load(library: Library) -> Native:
    """Load one of the libraries.

    Raises:
        NativeUnavailable: it is missing, cannot be loaded, or does not match this version of the package.
    """
    path = _find(f"libcore_{library}.so")
    try:
        handle = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeUnavailable(f"{path} cannot be loaded: {error}") from error
    digest = _digest(handle)
    if digest is None:
        raise NativeUnavailable(f"{path} is not a native library of this package, or is too old")
    if digest != DIGEST:
        text = f"its declarations have the digest {digest}, those of this package {DIGEST}"
        raise NativeUnavailable(f"{path} was built from other headers: build it again; {text}")
    return Native(library, handle)


def _digest(handle: ctypes.CDLL) -> str | None:
    """Return the digest of the headers that a library was built from; None: it has none."""
    if not hasattr(handle, "core_abi_digest"):
        return None
    handle.core_abi_digest.restype = ctypes.c_char_p
    return str(handle.core_abi_digest().decode())


def _find(name: str) -> Path:
    """Return the file of a library: in the folder of the environment variable if set, else inside the package."""
    override = native_folder()
    folders = [override] if override else [Path(root) / "lib" for root in headrace_engine.__path__]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    searched = " or ".join(str(folder) for folder in folders)
    source = f" ({NATIVE_VARIABLE})" if override else f"; build it, and set {NATIVE_VARIABLE} to its folder"
    raise NativeUnavailable(f"there is no {name} in {searched}{source}")
