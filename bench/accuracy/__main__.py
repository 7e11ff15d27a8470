"""Measure what quantizing costs: how likely a text is to SmolLM2 in each storage format of the cpu backend.

    make bench-accuracy       or       python -m bench.accuracy [WORDS ...] [--no-write]

The text is `tests/texts/mill.txt`, in passages of 512 ids. Each way is read in chunks of 256 rows, as prompts are, and
id after id, as answers are. It is compared with two others, both by the torch backend in float32:

- the oracle, on the same weights dequantised: what is left is rounding, and codes of activations, keys and values;
- the file's own values: what quantizing costs in all.

`same` is the share of ids after which the most likely next one is the oracle's, `cosine` the median of the logits'.
WORDS choose the ways whose names have all of them. Results go to `bench/results/accuracy.json` and into accuracy.md.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace_engine.config import ActivationQuant, ComputeDtype, KvCacheMode, WeightQuant
from support.backends.cpu_sequences import cpu_model
from support.models.text_accuracy import (
    MOST_ROWS,
    TEXT,
    Accuracy,
    Oracle,
    Passages,
    compared,
    decoded_logits,
    dequantized,
    passages,
    perplexity,
    prefilled_logits,
    smollm2,
)
from torch import Tensor

from bench.common.page import ACCURACY, RESULTS, measurement

LENGTH = 512
_JSON = RESULTS / "accuracy.json"

_INT4_64 = {"weight_quant": WeightQuant.INT4, "weight_quant_group_size": 64}
_INT4_32 = {"weight_quant": WeightQuant.INT4, "weight_quant_group_size": 32}
_INT8 = {"weight_quant": WeightQuant.INT8}
_CODES = {"activation_quant": ActivationQuant.INT8}

WAYS: Mapping[str, Mapping[str, Any]] = {
    "Q4_1 as shipped": {},
    "Q4_1, KV INT8": {"kv_cache_mode": KvCacheMode.INT8},
    "Q4_1, KV UINT4": {"kv_cache_mode": KvCacheMode.UINT4},
    "Q4_1, activations INT8": _CODES,
    "FLOAT32": {"dtype": ComputeDtype.FLOAT32},
    "INT8": _INT8,
    "INT8, activations INT8": _INT8 | _CODES,
    "INT4 in groups of 32": _INT4_32,
    "INT4 in groups of 32, activations INT8": _INT4_32 | _CODES,
    "INT4 in groups of 64": _INT4_64,
    "INT4 in groups of 64, activations INT8": _INT4_64 | _CODES,
}
"""Settings besides the defaults."""


@dataclass(frozen=True)
class Row:
    """One way.

    Attributes:
        plain: perplexity of the file's values in float32.
    """

    way: str
    isa: str
    plain: float
    prefilled: Accuracy
    decoded: Accuracy


def main() -> None:
    """Measure, print and write the results."""
    parser = measurement(__doc__)
    parser.add_argument("words", nargs="*")
    arguments = parser.parse_args()
    path = smollm2()
    texts = passages(path, LENGTH)
    oracle = Oracle(path, texts)
    plain = perplexity(oracle.logits(oracle.weights), texts)
    ways = [way for way in WAYS if all(word.lower() in way.lower() for word in arguments.words)]
    rows = []
    for way in ways:
        rows.append(measured(path, texts, oracle, way, plain))
        print(_line(rows[-1]), flush=True)
    if arguments.write:
        _write(rows, texts)


def measured(path: Path, texts: Passages, oracle: Oracle, way: str, plain: float) -> Row:
    """Measure one way against its oracle."""
    with cpu_model(path, max_length=LENGTH, max_batch=MOST_ROWS, **WAYS[way]) as model:
        expected: Tensor = oracle.logits(dequantized(model.weights.tensors))
        return Row(
            way=way,
            isa=model.cpu.isa.name.lower(),
            plain=plain,
            prefilled=compared(prefilled_logits(model, texts), expected, texts),
            decoded=compared(decoded_logits(model, texts), expected, texts),
        )


def _write(rows: list[Row], texts: Passages) -> None:
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    content = {
        "date": date,
        "text": TEXT.name,
        "passages": len(texts),
        "ids": LENGTH,
        "ways": [asdict(r) for r in rows],
    }
    _JSON.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    head = (
        f"{date}, {rows[0].isa}. SmolLM2-135M-Instruct in Q4_1, {len(texts)} passages of {LENGTH} ids. The file's own "
        f"values have a perplexity of {rows[0].plain:.3f} in float32."
    )
    columns = [
        "| weights | perplexity | to the file's values | to the oracle, prompts | answers | same | cosine |",
        "|---|---|---|---|---|---|---|",
    ]
    ACCURACY.write("\n".join([head, "", *columns, *map(_line, rows)]))


def _line(row: Row) -> str:
    cost = row.prefilled.perplexity / row.plain - 1
    changes = f"{row.prefilled.change:+.2%} | {row.decoded.change:+.2%}"
    near = f"{row.prefilled.same:.1%} | {row.prefilled.cosine:.5f}"
    return f"| {row.way} | {row.prefilled.perplexity:.3f} | {cost:+.2%} | {changes} | {near} |"


if __name__ == "__main__":
    main()
