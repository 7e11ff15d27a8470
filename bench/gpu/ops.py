"""Times of the decoder's ops on a device, each by the same call as in the backend."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from headrace_engine.backends.cuda.batch import CudaBatch
from headrace_engine.backends.cuda.device.device import Device
from headrace_engine.backends.cuda.device.flash import FlashPrefill, PromptAttention, VaryingAttention
from headrace_engine.backends.cuda.device.paged import PagedMaker, PagedPrefill
from headrace_engine.backends.cuda.device.pool import KvPool
from headrace_engine.backends.cuda.layout import Sizes
from headrace_engine.backends.cuda.ops import CudaOps
from headrace_engine.backends.cuda.sampling import DeviceSampler
from headrace_engine.backends.cuda.weights.activations import FP8_CAPABILITY
from headrace_engine.backends.cuda.weights.quantized import QuantizedProducts, QuantizedWeight
from headrace_engine.backends.cuda.weights.row_products import CodeProducts, RowQuantizedWeight
from headrace_engine.backends.torch.runner import make_batch
from headrace_engine.core.runner import SequenceStep
from headrace_engine.errors import InvalidArgument
from headrace_engine.models.spec import DecoderSpec, LayerSpec
from headrace_engine.native import Dtype, Format, Kv, Matrix, MatrixRows
from headrace_engine.native.abi import QuantizeRows, RowCodes
from headrace_engine.native.quantized import QuantizedMatrix

from bench.gpu.costs import CODES, FLASH_OP, GROUP, PAGED_OP, SHORT_CONTEXTS, Scale
from bench.gpu.decode import GREEDY, SAMPLED
from bench.gpu.shapes import BLOCK_SIZE, Stored, random_model
from bench.gpu.timing import seconds

Works = dict[str, Callable[[], object]]

GROUPS = ("rows", "attention", "codes", "sampling")
"""Of ops that are measured together."""

_SAMPLING = {"greedy": GREEDY, "top_k, top_p": SAMPLED}


def varying_attention(device: Device) -> VaryingAttention:
    """Return torch's flash attention, by the operator below it where torch's own function takes too little."""
    try:
        return device.attention()
    except InvalidArgument:
        return _flash_operator


def _flash_operator(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, firsts: torch.Tensor, *, longest: int, window: int, scale: float
) -> torch.Tensor:
    sizes = (firsts, firsts, longest, longest, 0.0, True, False)
    seen = {"window_size_left": window - 1, "window_size_right": 0} if window else {}
    result: torch.Tensor = torch.ops.aten._flash_attention_forward(q, k, v, *sizes, scale=scale, **seen)[0]
    return result


class Ops:
    """The ops of one layer of a decoder on a device.

    Args:
        spec: the decoder, of which one layer is created.
        scale: sizes of the ops.
    """

    def __init__(self, spec: DecoderSpec, device: Device, scale: Scale) -> None:
        self._spec = replace(spec, layers=(LayerSpec(),))
        self._device = device
        self._scale = scale
        self._kept: list[object] = []

    def measure(self, group: str) -> dict[str, float]:
        """Measure the seconds of each op of a group of GROUPS, by its name in `costs`."""
        makers = dict(zip(GROUPS, (self._on_rows, self._attention, self._coded, self._sampling), strict=True))
        with torch.inference_mode():
            works = makers[group]()
            return {name: seconds(self._device, work, self._scale.repeats) for name, work in works.items()}

    def _on_rows(self) -> Works:
        spec, rows = self._spec, self._scale.rows
        ops, _ = self._layer(Kv.BFLOAT16, [self._prompt()])
        x, residual = self._random(rows, spec.hidden_size), self._random(rows, spec.hidden_size)
        norm, wide = self._random(spec.hidden_size), self._random(rows, 2 * spec.intermediate_size)
        gate, up = wide.split(spec.intermediate_size, dim=1)
        weight = self._random(spec.intermediate_size, spec.hidden_size)
        table = self._random(spec.vocab_size, spec.hidden_size)
        ids = torch.randint(spec.vocab_size, (rows,), dtype=torch.int32, device=self._device.torch)
        return {
            "gather_rows": lambda: ops.table_rows(table, ids),
            "rms_norm + residual": lambda: ops.add_rms_norm(x, residual, norm, spec.norm_eps),
            "quantize_rows int8": self._quantize(x),
            "append_kv": self._append(),
            "gated_rows": lambda: ops.gated(gate, up),
            "linear (cuBLAS)": lambda: ops.linear(x, weight),
            **self._codes_of_rows(x, weight),
        }

    def _codes_of_rows(self, x: torch.Tensor, weight: torch.Tensor) -> Works:
        """Return products of 8-bit rows and weights, without the quantization of rows."""
        works: Works = {}
        for name in CODES:
            if name == "fp8" and self._device.capability < FP8_CAPABILITY:
                continue
            products = CodeProducts(self._device, RowCodes[name.upper()])
            rows, of_weight = products.quantize(x), products.quantize(weight)
            quantized = RowQuantizedWeight(of_weight.codes, of_weight.scales, [len(of_weight)])
            works[f"linear {name} rows (torch)"] = partial(products.linear, rows, quantized, None)
        return works

    def _attention(self) -> Works:
        spec, scale = self._spec, self._scale
        kinds = (
            ("decode_attention", "", self._last(scale.context)),
            ("decode_attention", SHORT_CONTEXTS, self._last(scale.short)),
            ("prefill_attention", "", [self._prompt()]),
        )
        works: Works = {}
        for kind, end, steps in kinds:
            for kv in (Kv.BFLOAT16, Kv.INT8, Kv.UINT4):
                ops, batch = self._layer(kv, steps)
                q = self._random(len(batch.token_ids), spec.query_width)
                works[f"{kind} {kv.name.lower()}{end}"] = partial(ops.paged_attention, 0, q, batch)
        others: dict[str, Callable[[KvPool], PromptAttention]] = {
            FLASH_OP: lambda pool: FlashPrefill(varying_attention(self._device), pool, spec)
        }
        if (maker := self._flashinfer()) is not None:
            others[PAGED_OP] = lambda pool: PagedPrefill(maker, pool, spec)
        for name, prompts in others.items():
            ops, batch = self._layer(Kv.BFLOAT16, [self._prompt()], prompts)
            works[name] = partial(ops.paged_attention, 0, self._random(scale.chunk, spec.query_width), batch)
        return works

    def _flashinfer(self) -> PagedMaker | None:
        """Return FlashInfer's attention; None: it is not installed."""
        try:
            return self._device.paged_attention()
        except InvalidArgument:
            return None

    def _coded(self) -> Works:
        spec, rng = self._spec, np.random.default_rng(1)
        x = self._random(self._scale.few, spec.hidden_size)
        works: Works = {}
        for name, form, zero in (("int8", Format.INT8, 128), ("int4", Format.INT4, 8)):
            matrix = Matrix(2 * spec.intermediate_size, spec.hidden_size, form, GROUP, Dtype.FLOAT16, zero=zero)
            codes = rng.integers(0, 2 * zero, (matrix.outputs, matrix.inputs), dtype=np.uint8)
            scales = np.full((matrix.outputs, matrix.groups), 1 / 128, dtype=np.float32)
            packed = QuantizedMatrix(self._device.native, matrix, Dtype.BFLOAT16)
            host = torch.empty(packed.nbytes, dtype=torch.uint8)
            packed.pack(host.data_ptr(), MatrixRows(codes, scales, None), 0)
            weight = QuantizedWeight(packed, host.to(self._device.torch), [matrix.outputs])
            works[f"quantized_linear {name}"] = partial(QuantizedProducts(self._device, []).linear, x, weight, None)
        return works

    def _sampling(self) -> Works:
        rows, vocab = self._scale.draws, self._spec.vocab_size
        logits = self._random(rows, vocab)
        works: Works = {}
        for name, sampling in _SAMPLING.items():
            sampler = DeviceSampler(self._device, rows, vocab)
            step = SequenceStep([0], 0, (0,), sampling)
            sampler.fill(list(enumerate([step] * rows)), rows)
            works[f"sample_rows {name}"] = partial(sampler.sample, logits)
        return works

    def _append(self) -> Callable[[], object]:
        spec = self._spec
        ops, batch = self._layer(Kv.BFLOAT16, [self._prompt()])
        fused = self._random(len(batch.token_ids), spec.query_width + 2 * spec.kv_width)
        q, k, v = fused.split([spec.query_width, spec.kv_width, spec.kv_width], dim=1)

        def append() -> None:
            ops.append_kv(0, q, k, v, batch, None)

        return append

    def _quantize(self, x: torch.Tensor) -> Callable[[], object]:
        out = torch.empty(x.shape, dtype=torch.int8, device=x.device)
        scales = torch.empty(len(x), dtype=torch.float32, device=x.device)
        self._kept += [out, scales]
        args = QuantizeRows(
            x=x.data_ptr(),
            out=out.data_ptr(),
            scales=scales.data_ptr(),
            rows=x.shape[0],
            width=x.shape[1],
            dtype=Dtype.BFLOAT16,
            codes=RowCodes.INT8,
        )
        return lambda: self._device.launch("quantize_rows", args)

    def _layer(
        self, kv: Kv, steps: list[SequenceStep], prompts: Callable[[KvPool], PromptAttention] | None = None
    ) -> tuple[CudaOps, CudaBatch]:
        """Return the ops over a pool of its own, and a step already on the device.

        Args:
            prompts: makes attention of prompts in the place of the kernel's.
        """
        scale, spec = self._scale, self._spec
        sizes = Sizes(max(scale.chunk, len(steps)), len(steps), scale.limit // BLOCK_SIZE, BLOCK_SIZE)
        small = replace(spec, vocab_size=1, hidden_size=spec.head_dim, intermediate_size=64)
        model = random_model(small, self._device, sizes, Stored(kv=kv))
        pool = model.pool(max(max(step.blocks) for step in steps) + 1)
        for layer in pool.tensors:
            layer.random_(0, 64)
        staging = replace(model, spec=spec).staging()
        attention = None if prompts is None else prompts(pool)
        ops = CudaOps(spec, model.positions, pool, staging, self._device, model.products, attention)
        batch = make_batch(steps)
        staging.fill(batch)
        self._kept += [model, pool, staging]
        return ops, ops.prepare(batch)

    def _prompt(self) -> SequenceStep:
        blocks = list(range(-(-self._scale.chunk // BLOCK_SIZE)))
        random.Random(1).shuffle(blocks)
        return SequenceStep([0] * self._scale.chunk, 0, blocks)

    def _last(self, context: int) -> list[SequenceStep]:
        """Return a step of the last token of each sequence, which has scattered blocks."""
        sequences, each = self._scale.sequences, -(-context // BLOCK_SIZE)
        tables = [range(number, each * sequences, sequences) for number in range(sequences)]
        return [SequenceStep([0], context - 1, blocks) for blocks in tables]

    def _random(self, *shape: int) -> torch.Tensor:
        values = torch.randn(shape, dtype=torch.bfloat16, device=self._device.torch)
        self._kept.append(values)
        return values
