"""Converts errors about missing device code or memory into errors with advice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from headrace_engine.backends.cuda.device.device import Device
from headrace_engine.backends.kv_size import amount
from headrace_engine.errors import InvalidArgument, OutOfMemory
from headrace_engine.native import NativeError
from headrace_engine.native.abi import CopyBlocks

_NO_CODE = frozenset((209, 218, 222))
"""CUDA errors for missing kernel code: none for the card, or none that its driver can compile."""

_SMALLEST = 16
"""Minimum size of a block that a kernel copies, in bytes."""

WEIGHTS = "the weights", "set weight_quant, take a smaller model"
LARGEST_STEP = "the largest step", "lower max_prefill_tokens or max_batch"
POOL = "the KV pool with captured steps", "lower memory_ratio or num_blocks"


def check_kernels(device: Device) -> None:
    """Launch one small kernel, to check that the library has code for the card.

    Raises:
        InvalidArgument: it has none; names device_list.
        NativeError: the device refused it for another reason.
    """
    blocks = torch.zeros(2, _SMALLEST, dtype=torch.uint8, device=device.torch)
    pairs = torch.arange(2, dtype=torch.int32, device=device.torch)
    args = CopyBlocks(
        source=blocks.data_ptr(),
        target=blocks.data_ptr(),
        pairs=pairs.data_ptr(),
        bytes=_SMALLEST,
        source_stride=_SMALLEST,
        target_stride=_SMALLEST,
        source_piece_stride=_SMALLEST,
        target_piece_stride=_SMALLEST,
        count=1,
        pieces=1,
    )
    try:
        device.launch("copy_blocks", args)
    except NativeError as error:
        if error.device_error not in _NO_CODE:
            raise
        has = ".".join(map(str, device.capability))
        text = (
            f"= [{device.torch.index or 0}]: {device.name} has compute capability {has}, and core_cuda has no code for "
            "that: build it on this machine, or for all cards with `make cuda-all`"
        )
        raise InvalidArgument.field("config.device_list", text) from error


@contextmanager
def explain_out_of_memory(device: Device, about: tuple[str, str]) -> Iterator[None]:
    """Convert torch's out-of-memory error into one that names what did not fit.

    Args:
        about: one of the pairs above: what did not fit, and how to make it smaller.

    Raises:
        OutOfMemory: the message gives the numbers, and what to do.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        total, free = device.memory()
        what, smaller = about
        raise OutOfMemory(
            f"no memory for {what} on {device.name}, where {amount(free)} of {amount(total)} are free: {smaller}, or "
            "end what else computes there"
        ) from error
