"""FlashInfer's paged attention in plain torch, on any device: its parameters, and its layout of pages."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

INT32 = torch.int32


class SimPagedMaker:
    """Makes stand-ins.

    Attributes:
        made: those that were made.
    """

    nbytes = 0

    def __init__(self) -> None:
        self.made: list[SimPagedAttention] = []

    def make(self) -> SimPagedAttention:
        """Return a new one."""
        self.made.append(SimPagedAttention())
        return self.made[-1]


class SimPagedAttention:
    """Stands in for BatchPrefillWithPagedKVCacheWrapper with the layout HND; asserts what that requires.

    Attributes:
        plans: number of plans so far.
        runs: number of runs so far.
    """

    def __init__(self) -> None:
        self.plans = self.runs = 0

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool,
        sm_scale: float,
        window_left: int,
        logits_soft_cap: float,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
    ) -> None:
        """See PagedAttention."""
        arrays = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        assert all(array.dtype == INT32 and array.device.type == "cpu" and array.dim() == 1 for array in arrays)
        rows, ends, indices, last = (array.tolist() for array in arrays)
        assert rows[0] == ends[0] == 0
        assert len(rows) == len(ends) == len(last) + 1
        assert all(one < other for array in (rows, ends) for one, other in pairwise(array))
        assert ends[-1] == len(indices)
        assert all(1 <= count <= page_size for count in last)
        assert causal
        assert num_qo_heads % num_kv_heads == 0
        assert q_data_type == kv_data_type == torch.bfloat16
        # Tensors, as a run may be part of a captured graph.
        self._pages = [paged_kv_indices[first:end].long() for first, end in pairwise(ends)]
        self._rows, self._last = rows, last
        self._shape = (num_qo_heads, num_kv_heads, head_dim_qk, page_size)
        self._rules = (sm_scale, window_left, logits_soft_cap)
        self.plans += 1

    def run(self, q: Tensor, paged_kv_cache: Tensor, *, out: Tensor) -> Tensor:
        """See PagedAttention."""
        heads, kv_heads, head_dim, page_size = self._shape
        assert q.shape == out.shape == (self._rows[-1], heads, head_dim)
        assert paged_kv_cache.shape[1:] == (2, kv_heads, page_size, head_dim)
        assert q.dtype == out.dtype == paged_kv_cache.dtype == torch.bfloat16
        assert paged_kv_cache.stride()[-3:] == (page_size * head_dim, head_dim, 1)
        for number, pages in enumerate(self._pages):
            rows = slice(self._rows[number], self._rows[number + 1])
            tokens = (len(pages) - 1) * page_size + self._last[number]
            keys, values = paged_kv_cache[pages].transpose(0, 1).transpose(1, 2).flatten(2, 3)[:, :, :tokens].float()
            out[rows] = self._attended(q[rows].float().transpose(0, 1), keys, values).transpose(0, 1).to(out.dtype)
        self.runs += 1
        return out

    def _attended(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return the outputs [heads, rows, head_dim]; the last rows of the sequence are those of q."""
        scale, window_left, soft_cap = self._rules
        shared = q.shape[0] // keys.shape[0]
        keys, values = (each.repeat_interleave(shared, 0) for each in (keys, values))
        scores = q @ keys.transpose(1, 2) * scale
        if soft_cap:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        count, tokens = q.shape[1], keys.shape[1]
        places = torch.arange(tokens, device=q.device)
        behind = places[tokens - count :].unsqueeze(1) - places
        seen = (behind >= 0) & (behind <= window_left) if window_left >= 0 else behind >= 0
        return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ values
