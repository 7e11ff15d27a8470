"""Loads a model onto a CUDA device: everything before the KV pool is sized."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from headrace_engine.backends.cpu.weights.choices import choose_storage
from headrace_engine.backends.cuda.batch import CudaBatch, StepStaging
from headrace_engine.backends.cuda.decode_tasks import DecodeTasks
from headrace_engine.backends.cuda.device.device import Device
from headrace_engine.backends.cuda.device.errors import WEIGHTS, check_kernels, explain_out_of_memory
from headrace_engine.backends.cuda.device.flash import FLASH, FlashPrefill, PromptAttention
from headrace_engine.backends.cuda.device.paged import PagedMaker, PagedPrefill, why_not_paged
from headrace_engine.backends.cuda.device.pool import KV_MODES, KvPool, bytes_a_block, kv_blocks
from headrace_engine.backends.cuda.layout import Sizes
from headrace_engine.backends.cuda.ops import CudaOps
from headrace_engine.backends.cuda.plain import PlainOps, plain_ops, take_plain
from headrace_engine.backends.cuda.readiness import check_plan, check_spec
from headrace_engine.backends.cuda.row_ops import FusedRowCodeOps, RowCodeOps
from headrace_engine.backends.cuda.weights.activations import choose_row_codes
from headrace_engine.backends.cuda.weights.packing import Packer
from headrace_engine.backends.cuda.weights.quantized import QuantizedProducts, QuantizedWeight
from headrace_engine.backends.cuda.weights.row_products import CodeProducts, PlainProducts
from headrace_engine.backends.host import compute_threads
from headrace_engine.backends.kv_size import CUDA_RATIO, amount, positions_that_fit
from headrace_engine.backends.planned import open_planned
from headrace_engine.backends.torch.adapters import TorchAdapters
from headrace_engine.backends.torch.rope import Positions
from headrace_engine.config import ComputeDtype, ComputeUnit
from headrace_engine.core.runner import Progress
from headrace_engine.environment import ATTENTION_VARIABLE, FLASHINFER, PLAIN_VARIABLE, prompt_attention
from headrace_engine.errors import InvalidArgument, OutOfMemory
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.models.decoder import Decoder
from headrace_engine.models.spec import DecoderSpec
from headrace_engine.native.abi import KvBlocks, QuantizedLimit, RowCodes

_log = logging.getLogger(__name__)

_BEFORE_PRODUCTS = ("input_norm", "post_norm")
"""Norms whose output is multiplied."""


@dataclass(frozen=True)
class CudaModel:
    """A decoder's weights on a device, and the shape of its pool.

    Attributes:
        spec: with the caller's rotary scaling applied.
        weights: by canonical name, bfloat16 tensors and quantized weights.
        positions: tables of all positions that the plan allows.
        blocks: shape of one layer's blocks, without memory.
        block_bytes: bytes of a block of one layer.
        sizes: sizes of the largest step.
        num_threads: number of compute threads on the host.
        plain: names of ops that torch computes instead of a kernel.
        row_codes: code type of activations in products of layers; None: numbers.
        adapters: None: the plan has no room for any.
        paged: attention of prompts by FlashInfer; None: by the kernel.
    """

    device: Device
    spec: DecoderSpec
    weights: Mapping[str, Any]
    positions: Positions
    blocks: KvBlocks
    block_bytes: int
    sizes: Sizes
    num_threads: int
    plain: frozenset[str] = frozenset()
    row_codes: RowCodes | None = None
    adapters: TorchAdapters | None = None
    paged: PagedMaker | None = None
    unit: ClassVar = ComputeUnit.CUDA
    dtype: ClassVar = ComputeDtype.BFLOAT16

    @property
    def device_name(self) -> str:
        """Name of the device for display."""
        return self.device.name

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights on the device, and of the tables of positions."""
        different: dict[int, int] = {id(weight): weight.nbytes for weight in self.weights.values()}
        adapters = 0 if self.adapters is None else self.adapters.nbytes
        return sum(different.values()) + self.positions.nbytes + adapters

    @cached_property
    def products(self) -> QuantizedProducts:
        """Computes with the quantized weights; all steps share its scratch buffer."""
        max_rows = 0 if "quantized_linear" in self.plain else QuantizedLimit.QUANTIZED_ROWS
        return QuantizedProducts(self.device, list(self.weights.values()), max_rows)

    def embedding(self, token_id: int) -> Tensor:
        """Return the embedding of a token, [hidden]."""
        table = self.weights["embed"]
        if isinstance(table, QuantizedWeight):
            return self.products.rows(table, torch.tensor([token_id], dtype=torch.int32, device=self.device.torch))[0]
        row: Tensor = table[token_id]
        return row

    def staging(self) -> StepStaging:
        """Return what uploads steps, with memory of its own."""
        longest = self.sizes.blocks * self.sizes.block_size
        return StepStaging(self.device, self.sizes, DecodeTasks(self.spec, longest))

    def pool(self, num_blocks: int) -> KvPool:
        """Return a new KV pool on the device, zeroed."""
        return KvPool(self.blocks, self.block_bytes, self.spec.num_layers, num_blocks, self.device.torch)

    def decoder(self, pool: KvPool, staging: StepStaging) -> Decoder[Tensor, CudaBatch]:
        """Return a decoder over a pool."""
        ops = self._ops(pool, staging)
        if self.plain:
            take_plain(ops, PlainOps(self.spec, self.positions, pool), self.plain)
        return Decoder(self.spec, ops, self.weights, adapts=self.adapters is not None)

    def _ops(self, pool: KvPool, staging: StepStaging) -> CudaOps:
        prompts = self._prompt_attention(pool)
        given = (self.spec, self.positions, pool, staging, self.device, self.products, prompts, self.adapters)
        if self.row_codes is None:
            return CudaOps(*given)
        if "row_codes" in self.plain:
            return RowCodeOps(*given, codes=PlainProducts(self.row_codes))
        codes = CodeProducts(self.device, self.row_codes)
        return FusedRowCodeOps(*given, codes=codes, feeding=self._norms_before_products())

    def _prompt_attention(self, pool: KvPool) -> PromptAttention | None:
        if FLASH in self.plain:
            return FlashPrefill(self.device.attention(), pool, self.spec)
        return None if self.paged is None else PagedPrefill(self.paged, pool, self.spec)

    def _norms_before_products(self) -> Iterator[Tensor]:
        names = (f"layers.{layer}.{norm}" for layer in range(self.spec.num_layers) for norm in _BEFORE_PRODUCTS)
        return (self.weights[name] for name in names if name in self.weights)


def load_model(plan: CorePlan, device: Device, progress: Progress) -> CudaModel:
    """Load the weights onto the device.

    Raises:
        InvalidArgument: this backend does not support a value of the plan; names the field.
        BadModel: the files are not valid.
        OutOfMemory: the weights alone exceed the device's memory.
    """
    check_plan(plan)
    check_kernels(device)
    plain = plain_ops()
    if plain:
        _log.warning("cuda_plain_ops: %s are computed by torch, as the environment says", ", ".join(sorted(plain)))
    files = open_planned(plan)
    spec = files.spec
    check_spec(plan, spec)
    num_threads = plan.num_threads or compute_threads()
    row_codes = choose_row_codes(plan, files, device)
    packer = Packer(device, files, spec, choose_storage(plan, CudaModel.dtype), num_threads, row_codes)
    _check_memory(packer.needed(), device)
    longest = positions_that_fit(plan, spec, device.memory()[0], CUDA_RATIO)
    with explain_out_of_memory(device, WEIGHTS):
        weights = packer.pack(progress)
        adapters = TorchAdapters(plan, spec, torch.bfloat16, device.torch) if plan.lora_max_num else None
    blocks = kv_blocks(spec, plan.block_size, KV_MODES[plan.kv_cache_mode])
    tables = -(-longest // plan.block_size)
    return CudaModel(
        device=device,
        spec=spec,
        weights=weights,
        positions=Positions(spec, longest, device.torch),
        blocks=blocks,
        block_bytes=bytes_a_block(device.native, blocks),
        sizes=Sizes(plan.max_prefill_tokens, plan.max_batch, tables, plan.block_size),
        num_threads=num_threads,
        plain=plain,
        row_codes=row_codes,
        adapters=adapters,
        paged=_paged_attention(device, spec, blocks, plain),
    )


def _paged_attention(device: Device, spec: DecoderSpec, blocks: KvBlocks, plain: Collection[str]) -> PagedMaker | None:
    """Return FlashInfer's attention if the environment asks for it, and it computes the decoder's."""
    if prompt_attention() != FLASHINFER:
        return None
    if FLASH in plain:
        text = f'= "{FLASHINFER}" and {PLAIN_VARIABLE} = "{FLASH}" in the environment: leave one of them out'
        raise InvalidArgument.field(ATTENTION_VARIABLE, text)
    if why := why_not_paged(spec, blocks.kv):
        _log.warning("cuda_attention: %s, so kernels compute attention of prompts, and not %s", why, FLASHINFER)
        return None
    _log.info("cuda_attention: %s computes attention of prompts", FLASHINFER)
    return device.paged_attention()


def _check_memory(needed: int, device: Device) -> None:
    _, free = device.memory()
    if needed > free:
        raise OutOfMemory(
            f"{amount(needed)} of weights do not fit, {amount(free)} are free on {device.name}: set weight_quant, "
            "take a smaller model, or free memory there"
        )
