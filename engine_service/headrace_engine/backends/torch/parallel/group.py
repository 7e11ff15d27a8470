"""Exchanges of tensors between the ranks of a model, by torch.distributed: gloo on CPUs, NCCL on CUDA devices."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from headrace_engine.errors import Internal

Store = Any
"""A `torch.distributed.Store`, where ranks find one another. torch declares no types of it, nor of its groups."""

_distributed: Any = torch.distributed
_HOST = "127.0.0.1"
_MEETING = timedelta(seconds=120)
"""Limit for all ranks to join."""
_EXCHANGE = timedelta(hours=1)
"""Limit of an exchange: a rank that hangs is found by the heartbeat of its core, long before."""


def open_store(size: int) -> Store:
    """Open the store where `size` ranks meet, on a port that the system chooses."""
    return _distributed.TCPStore(_HOST, 0, size, is_master=True, timeout=_MEETING, wait_for_workers=False)


def find_store(port: int, size: int) -> Store:
    """Connect with the store of rank 0."""
    return _distributed.TCPStore(_HOST, port, size, is_master=False, timeout=_MEETING, wait_for_workers=False)


class Group:
    """All ranks of one model. Every exchange is made by all of them, in the same order.

    Args:
        rank: number of this one.
        size: number of ranks, at least 2.
        store: where they meet.
        device: the device of this rank's tensors.

    Raises:
        Internal: a rank did not join.
    """

    def __init__(self, rank: int, size: int, store: Store, device: torch.device) -> None:
        self.rank = rank
        self.size = size
        self._store = store
        try:
            # Made without the default group of the process, in which other models may run.
            self._backend: Any = _nccl(rank, size, store) if device.type == "cuda" else _gloo(rank, size, store)
        except RuntimeError as error:
            raise Internal(f"the {size} ranks of the model could not connect: {error}") from error

    def gather(self, part: Tensor, width: int) -> Tensor:
        """Join the columns of all ranks: [rows, width] of parts [rows, …] of one width.

        What the parts hold beyond `width` together is padding, and is left out.
        """
        rows, columns = part.shape
        return self.stack(part).transpose(0, 1).reshape(rows, self.size * columns)[:, :width].contiguous()

    def stack(self, part: Tensor) -> Tensor:
        """Return the tensors [rows, columns] of all ranks: [size, rows, columns]."""
        rows, columns = part.shape
        out = part.new_empty(self.size * rows, columns)
        if rows:
            self._backend._allgather_base(out, part.contiguous()).wait()
        return out.view(self.size, rows, columns)

    def add(self, partial: Tensor) -> Tensor:
        """Add up the tensors of all ranks, in float32; return the sum in their type."""
        total = partial.float().contiguous()
        if len(total):
            self._backend.allreduce([total]).wait()
        return total.to(partial.dtype)


def _gloo(rank: int, size: int, store: Store) -> Any:
    kind = _distributed.ProcessGroupGloo
    options = kind._Options()
    options._devices = [kind.create_device(hostname=_HOST)]
    options._threads, options._timeout = 1, _MEETING
    group = kind(store, rank, size, options)
    group._set_default_timeout(_EXCHANGE)
    return group


def _nccl(rank: int, size: int, store: Store) -> Any:
    kind = _distributed.ProcessGroupNCCL
    options = kind.Options()
    options._timeout = _EXCHANGE
    return kind(store, rank, size, options)
