"""Finds and loads the libraries of the native core, and calls their ops."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast

import headrace_engine
from headrace_engine.environment import NATIVE_VARIABLE, native_folder
from headrace_engine.errors import Internal
from headrace_engine.native.abi import (
    Code,
    Dtype,
    RmsNorm,
    abi_differences,
    abi_here,
    abi_there,
    field_at,
    value_at,
)
from headrace_engine.native.device_abi import OPS, device_abi_here
from headrace_engine.native.functions import PROTOTYPES, declare
from headrace_engine.native.program_abi import program_abi_here

Library = Literal["cpu", "cuda", "sim"]
"""Names of the libraries: g++ on the CPU, nvcc on a GPU, and the CUDA sources simulated on the CPU (tests only)."""


class NativeUnavailable(Internal):
    """A library is missing, cannot be loaded, or was built from another version of core.h."""


class NativeError(Internal):
    """An op refused its arguments, or the device refused the launch.

    Args:
        code: what went wrong.
        field: the parameter at fault; "" where none is.
        device_error: the number that the device's runtime gave it; 0 where it gave none.
    """

    def __init__(self, message: str, *, code: Code, field: str = "", device_error: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.field = field
        self.device_error = device_error


class Native:
    """One loaded library. It holds no state: any thread may call any op at any time.

    Attributes:
        library: which one it is.
        handle: its functions, for the other modules of this package.
        device: type of the device whose memory its ops work on, "cpu" or "cuda".
    """

    def __init__(self, library: Library, handle: ctypes.CDLL) -> None:
        self.library = library
        self.handle = handle
        self.device = "cuda" if library == "cuda" else "cpu"
        self._ops = {op: _declared(handle, op, record) for op, record in OPS.items() if hasattr(handle, f"core_{op}")}
        self._status_text = handle.core_status_text
        self._status_text.argtypes = (ctypes.c_int32,)
        self._status_text.restype = ctypes.c_char_p

    def rms_norm(
        self,
        *,
        out: int,
        x: int,
        weight: int,
        rows: int,
        hidden: int,
        eps: float,
        dtype: Dtype,
        stream: int = 0,
    ) -> None:
        """Root mean square norm of each row: out = x * rsqrt(mean(x^2) + eps) * weight.

        Args:
            out: address of [rows, hidden]; may be x.
            x: address of [rows, hidden].
            weight: address of [hidden].
            dtype: of all buffers.
            stream: the cudaStream_t to enqueue on; the libraries that run on the CPU return when they are done.

        Raises:
            NativeError: an argument is wrong, or the device refused the launch.
        """
        args = RmsNorm(x=x, weight=weight, out=out, rows=rows, hidden=hidden, eps=eps, dtype=dtype)
        self.launch("rms_norm", args, stream)

    def add_rms_norm(
        self,
        *,
        out: int,
        residual_out: int,
        x: int,
        residual: int,
        weight: int,
        rows: int,
        hidden: int,
        eps: float,
        dtype: Dtype,
        stream: int = 0,
    ) -> None:
        """Adds x to a residual and norms the sum, as `rms_norm` does.

        The sum is rounded to the dtype before it is normed, so that the result is that of two separate steps.

        Args:
            out: address of [rows, hidden]; may be x.
            residual_out: address of [rows, hidden] for x + residual; may be residual.
            x: address of [rows, hidden].
            residual: address of [rows, hidden].
            weight: address of [hidden].
            dtype: of all buffers.
            stream: the cudaStream_t to enqueue on; the libraries that run on the CPU return when they are done.

        Raises:
            NativeError: an argument is wrong, or the device refused the launch.
        """
        args = RmsNorm(x, residual, weight, out, residual_out, rows, hidden, eps, dtype)
        if rows > 0 and not residual and not residual_out:
            raise NativeError(
                "add_rms_norm: residual = None: the pointer must not be null", code=Code.NULL_POINTER, field="residual"
            )
        self.check("add_rms_norm", self._ops["rms_norm"](ctypes.byref(args), stream), args)

    def launch(self, op: str, args: ctypes.Structure, stream: int = 0) -> None:
        """Calls an op.

        Args:
            op: "rms_norm" for core_rms_norm.
            args: its parameter struct.
            stream: the cudaStream_t to enqueue on; the libraries that run on the CPU return when they are done.

        Raises:
            NativeError: an argument is wrong, or the device refused the launch.
        """
        self.check(op, self._ops[op](ctypes.byref(args), stream), args)

    def check(self, op: str, status: int, args: ctypes.Structure | None = None) -> None:
        """Raise what a status says.

        Args:
            op: what was called, for the message.
            status: what it returned.
            args: its parameter struct, where it has one.

        Raises:
            NativeError: the status is no success; names the op, and the field at fault with its value.
        """
        code, detail = Code(status & 0xFF), status >> 8
        if code is Code.OK:
            return
        text = self._status_text(status).decode()
        if code is Code.DEVICE_ERROR:
            raise NativeError(f"{op}: {text} (device error {detail})", code=code, device_error=detail)
        if args is None or not detail:
            raise NativeError(f"{op}: {text}", code=code)
        field = field_at(type(args), detail - 1)
        shown = _shown(value_at(args, field))
        raise NativeError(f"{op}: {field}{shown}: {text}", code=code, field=field)


def _declared(handle: ctypes.CDLL, op: str, record: type[ctypes.Structure]) -> Callable[..., int]:
    function: Any = getattr(handle, f"core_{op}")
    function.argtypes = (ctypes.POINTER(record), ctypes.c_void_p)
    function.restype = ctypes.c_int32
    return cast(Callable[..., int], function)


def _shown(value: object) -> str:
    """A field's value in a message; "" for pointers to structs, whose address tells nothing."""
    if isinstance(value, ctypes.Structure):
        return " = " + ", ".join(f"{name} {getattr(value, name)}" for name, *_ in value._fields_)
    return "" if isinstance(value, ctypes._Pointer | ctypes.Array) and value else f" = {value}"


def load(library: Library) -> Native:
    """Loads one of the libraries.

    Raises:
        NativeUnavailable: it is not there, cannot be loaded, or does not fit this version of the package.
    """
    path = _find(f"libcore_{library}.so")
    try:
        handle = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeUnavailable(f"{path} cannot be loaded: {error}") from error
    if not hasattr(handle, "core_abi"):
        raise NativeUnavailable(f"{path} is no library of the native core")
    differences = _differences(library, handle)
    if differences:
        raise NativeUnavailable(f"{path} was built from another core.h; build it again: " + "; ".join(differences))
    if library == "cpu":
        declare(handle)
    return Native(library, handle)


def _differences(library: Library, handle: ctypes.CDLL) -> list[str]:
    """What a library and this package see differently in the headers that the library implements."""
    differences = abi_differences(abi_here(), abi_there(handle))
    if library != "cpu":
        functions = ("core_device_abi", *(f"core_{op}" for op in OPS))
        missing = [f"{name} is missing in the library" for name in functions if not hasattr(handle, name)]
        return missing or differences + abi_differences(device_abi_here(), abi_there(handle, "core_device_abi"))
    functions = ("core_program_abi", *PROTOTYPES)
    missing = [f"{name} is missing in the library" for name in functions if not hasattr(handle, name)]
    return missing or differences + abi_differences(program_abi_here(), abi_there(handle, "core_program_abi"))


def _find(name: str) -> Path:
    """The file of a library: in the folder of the environment variable if that is set, else inside the package."""
    override = native_folder()
    folders = [override] if override else [Path(root) / "lib" for root in headrace_engine.__path__]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    places = " or ".join(str(folder) for folder in folders)
    source = f" ({NATIVE_VARIABLE})" if override else f"; build it, and set {NATIVE_VARIABLE} to its folder"
    raise NativeUnavailable(f"there is no {name} in {places}{source}")
