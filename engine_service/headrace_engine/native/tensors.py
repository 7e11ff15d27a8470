"""From tensors to the addresses that ops take, without importing torch."""

from __future__ import annotations

from typing import Any, Protocol

from headrace_engine.native.abi import Dtype


class TensorLike(Protocol):
    """What `pointer()` needs to know of a tensor."""

    @property
    def dtype(self) -> Any:
        """Its str() is such as "torch.bfloat16"."""

    @property
    def device(self) -> Any:
        """Its type is "cpu" or "cuda"."""

    def is_contiguous(self) -> bool:
        """Whether elements lie row-major without gaps."""

    def data_ptr(self) -> int:
        """Address of the first element."""


def dtype_of(tensor: TensorLike) -> Dtype:
    """The dtype of a tensor.

    Raises:
        ValueError: the core does not store numbers like that.
    """
    name = str(tensor.dtype).removeprefix("torch.").upper()
    if name not in Dtype.__members__:
        raise ValueError(f"dtype {tensor.dtype} is not one of {', '.join(Dtype.__members__).lower()}")
    return Dtype[name]


def pointer(tensor: TensorLike, dtype: Dtype, device: str) -> int:
    """Address of a contiguous tensor of this dtype on this device ("cpu" or "cuda").

    Raises:
        ValueError: the tensor is of another dtype, lies elsewhere, or has gaps.
    """
    if dtype_of(tensor) is not dtype:
        raise ValueError(f"the tensor is {tensor.dtype}, not {dtype.name.lower()}")
    if tensor.device.type != device:
        raise ValueError(f"the tensor is on {tensor.device}, not on {device}")
    if not tensor.is_contiguous():
        raise ValueError("the tensor is not contiguous")
    return tensor.data_ptr()
