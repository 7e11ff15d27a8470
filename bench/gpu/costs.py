"""Lower bounds of the bytes that a decoder's ops move, and of their operations."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_engine.models.spec import DecoderSpec

from bench.gpu.shapes import BFLOAT16, KV_BYTES

GROUP = 128
"""Number of quantized weights that share a scale."""

CODES = ("int8", "fp8")
"""Formats of quantized rows, multiplied with weights of the same format."""

FLASH_OP = "prefill_attention bfloat16 (torch)"
PAGED_OP = "prefill_attention bfloat16 (FlashInfer)"


SHORT_CONTEXTS = ", short"
"""End of the names of ops on short sequences."""


@dataclass(frozen=True)
class Scale:
    """Sizes of the ops: larger than the 50 MB of an H100's cache, so that memory is measured.

    Attributes:
        rows: rows of ops on many rows.
        few: rows of products with quantized weights; at most 64.
        draws: rows of logits from which an id each is sampled.
        sequences, context: size of decode attention.
        short: context of the same among short sequences.
        limit: maximum tokens of a sequence that the decoder is loaded for.
        chunk: rows of a prompt that attends to itself.
        repeats: repetitions of an op in one captured graph.
    """

    rows: int
    few: int
    draws: int
    sequences: int
    context: int
    short: int
    limit: int
    chunk: int
    repeats: int


WHOLE = Scale(
    rows=8192, few=32, draws=512, sequences=32, context=2048, short=128, limit=131_072, chunk=4096, repeats=20
)
SHORT = Scale(rows=5, few=3, draws=2, sequences=2, context=40, short=3, limit=4096, chunk=20, repeats=2)


@dataclass(frozen=True)
class Cost:
    """Bytes that an op must move, and its operations of bfloat16 products."""

    moved: float
    computed: float = 0.0

    def floor(self, copy: float, products: float) -> float:
        """Return the minimum seconds at these bytes and operations per second."""
        return max(self.moved / copy, self.computed / products)


def costs(spec: DecoderSpec, scale: Scale) -> dict[str, Cost]:
    """Return the cost of each op by name: everything is read once and written once."""
    rows, hidden, inner = scale.rows, spec.hidden_size, spec.intermediate_size
    row = BFLOAT16 * hidden
    fused = spec.query_width + 2 * spec.kv_width
    found = {
        "gather_rows": Cost(2.0 * rows * row),
        "rms_norm + residual": Cost(4.0 * rows * row),
        "quantize_rows int8": Cost(rows * (row + hidden + 4.0)),
        "append_kv": Cost(2.0 * BFLOAT16 * scale.chunk * fused),
        "gated_rows": Cost(3.0 * BFLOAT16 * rows * inner),
        "linear (cuBLAS)": Cost(BFLOAT16 * (rows * (hidden + inner) + inner * hidden), 2.0 * rows * inner * hidden),
    }
    for codes in CODES:  # multiplied at twice the speed of bfloat16
        moved = rows * (hidden + BFLOAT16 * inner) + inner * hidden
        found[f"linear {codes} rows (torch)"] = Cost(float(moved), float(rows * inner * hidden))
    for name, context in (("", scale.context), (SHORT_CONTEXTS, scale.short)):
        tokens = scale.sequences * context
        for kv, size in KV_BYTES.items():
            stored = 2 * tokens * spec.num_kv_heads * size(spec.head_dim)
            found[f"decode_attention {kv.name.lower()}{name}"] = Cost(stored, 4.0 * tokens * spec.query_width)
    for kv, size in KV_BYTES.items():
        triangle = 2.0 * scale.chunk * (scale.chunk + 1) * spec.query_width
        read = 2 * scale.chunk * (BFLOAT16 * spec.query_width + spec.num_kv_heads * size(spec.head_dim))
        found[f"prefill_attention {kv.name.lower()}"] = Cost(read, triangle)
    found[FLASH_OP] = found[PAGED_OP] = found["prefill_attention bfloat16"]
    for name, weight in (("int8", 1.0), ("int4", 0.5)):
        values = 2.0 * inner * hidden
        rows_moved = BFLOAT16 * scale.few * (hidden + 2.0 * inner)
        found[f"quantized_linear {name}"] = Cost(values * (weight + 2.0 / GROUP) + rows_moved, 2.0 * scale.few * values)
    logits = Cost(float(BFLOAT16 * scale.draws * spec.vocab_size))
    found["sample_rows greedy"] = found["sample_rows top_k, top_p"] = logits
    return found
