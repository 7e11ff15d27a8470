"""Cases of `make gpu-bench`, by part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from headrace_engine.backends.cuda.device.device import Device
from headrace_engine.config import WeightQuant
from headrace_engine.cuda_checked import SANITIZERS
from headrace_engine.models.spec import DecoderSpec, LayerSpec
from headrace_engine.native import Kv

from bench.gpu import decode
from bench.gpu.decode import Load
from bench.gpu.parts import sanitizer, tier, transformers
from bench.gpu.parts.expected import Expected, Limits, decoding, figures
from bench.gpu.shapes import LLAMA, NUMBERS, QWEN, SMOL, TINY, Stored

Measure = Callable[[Device], Mapping[str, float]]
"""Figures by name and unit."""


@dataclass(frozen=True)
class Case:
    """One row of a part.

    Attributes:
        name: unique within the part.
        measure: takes less than two minutes on the cards that the kernels are for.
        expect: expectations, by the names of its figures.
    """

    name: str
    measure: Measure
    expect: Callable[[Limits], Mapping[str, Expected]]


@dataclass(frozen=True)
class Plan:
    """Sizes of the measurements.

    Attributes:
        large, middle, small: shapes by name.
        few, most: batches of a load.
        load: load of most cases, apart from the batches.
        long, prompts: loads of long answers, and of long prompts.
        crowd: a large batch.
        blocks: number of blocks that move to host memory and back.
        library: library whose kernels are checked, for pytest's -k.
        checked: tools, and files of tests.
    """

    large: tuple[str, DecoderSpec]
    middle: tuple[str, DecoderSpec]
    small: tuple[str, DecoderSpec]
    few: tuple[int, ...]
    most: tuple[int, ...]
    load: Load
    long: Load
    prompts: Load
    crowd: int
    blocks: tuple[int, ...]
    library: str
    checked: tuple[tuple[str, ...], tuple[str, ...]]


WHOLE = Plan(
    large=("Llama 3.1 8B", LLAMA),
    middle=("Qwen2.5-1.5B", QWEN),
    small=("SmolLM2-135M", SMOL),
    few=(1, 32),
    most=(1, 8, 32, 128),
    load=decode.WHOLE,
    long=replace(decode.WHOLE, prompt=1000, new=1000),
    prompts=replace(decode.WHOLE, prompt=2048, new=128),
    crowd=256,
    blocks=(64, 512),
    library="cuda",
    checked=(SANITIZERS, sanitizer.FILES),
)
_TINY = ("tiny", replace(TINY, layers=(LayerSpec(),)))
_SHORT = replace(decode.SHORT, prompt=5, new=2)
SHORT = Plan(
    large=_TINY,
    middle=_TINY,
    small=_TINY,
    few=(1,),
    most=(1, 3),
    load=_SHORT,
    long=replace(_SHORT, new=4),
    prompts=replace(_SHORT, prompt=20),
    crowd=5,
    blocks=(3,),
    library="sim and forward",
    checked=(("memcheck",), ("test_device_kv.py",)),
)


def _decode(
    model: tuple[str, DecoderSpec], load: Load, batches: Sequence[int], stored: Stored = NUMBERS
) -> Iterator[Case]:
    name, spec = model
    for batch in batches:
        one = replace(load, batches=(batch,))
        yield Case(
            f"{name}, {_words(stored)}, {load.prompt}/{load.new}, batch {batch}",
            partial(_decoded, spec, one, stored),
            partial(decoding, spec, one, batch, stored=stored),
        )


def _decoded(spec: DecoderSpec, load: Load, stored: Stored, device: Device) -> Mapping[str, float]:
    (found,) = decode.measure(spec, device, load, stored)
    return figures(found)


def _words(stored: Stored) -> str:
    weights = "bfloat16" if stored.weights is WeightQuant.NONE else stored.weights.lower()
    return weights if stored.kv is Kv.BFLOAT16 else f"{weights}, keys and values {stored.kv.name.lower()}"


def _weights(plan: Plan) -> Iterator[Case]:
    for weights in (WeightQuant.INT8, WeightQuant.INT4):
        yield from _decode(plan.large, plan.load, plan.most, Stored(weights))


def _kv(plan: Plan) -> Iterator[Case]:
    for kv in (Kv.BFLOAT16, Kv.INT8, Kv.UINT4):
        yield from _decode(plan.large, plan.prompts, plan.few[-1:], Stored(kv=kv))


def _qwen(plan: Plan) -> Iterator[Case]:
    yield from _decode(plan.middle, plan.load, plan.most)
    for weights in (WeightQuant.INT8, WeightQuant.INT4):
        yield from _decode(plan.middle, plan.load, plan.few, Stored(weights))


def _loads(plan: Plan) -> Iterator[Case]:
    for load in (plan.long, plan.prompts):
        for model in dict.fromkeys((plan.small, plan.large)):
            yield from _decode(model, load, plan.few)


def _crowd(plan: Plan) -> Iterator[Case]:
    for model in dict.fromkeys((plan.small, plan.middle, plan.large)):
        yield from _decode(model, plan.load, (plan.crowd,))


def _transformers(plan: Plan) -> Iterator[Case]:
    for name, spec in dict.fromkeys((plan.small, plan.large)):
        for batch in plan.few:
            yield Case(
                f"transformers, {name}, bfloat16, {plan.load.prompt}/{plan.load.new}, batch {batch}",
                partial(_by_transformers, spec, plan.load, batch),
                partial(decoding, spec, plan.load, batch, eager=True),
            )


def _by_transformers(spec: DecoderSpec, load: Load, batch: int, device: Device) -> Mapping[str, float]:
    return figures(transformers.measure(spec, device, load, batch))


def _tier(plan: Plan) -> Iterator[Case]:
    name, spec = plan.large
    for blocks in plan.blocks:
        yield Case(f"{name}, {blocks} blocks", partial(_copied, spec, blocks), lambda limits: tier.expected())


def _copied(spec: DecoderSpec, blocks: int, device: Device) -> Mapping[str, float]:
    return tier.copying(spec, device, blocks)


def _sanitizer(plan: Plan) -> Iterator[Case]:
    """Return the sanitizer's cases; none if compute-sanitizer is not installed."""
    tools, files = plan.checked
    for tool in tools if sanitizer.installed() else ():
        for file in files:
            yield Case(f"{tool}, {file}", partial(_checked, plan.library, tool, file), lambda limits: {})


def _checked(library: str, tool: str, file: str, device: Device) -> Mapping[str, float]:
    return sanitizer.checked(library, tool, file)


PARTS: Mapping[str, Callable[[Plan], Iterator[Case]]] = {
    "weights": _weights,
    "kv": _kv,
    "qwen": _qwen,
    "loads": _loads,
    "batch256": _crowd,
    "transformers": _transformers,
    "tier": _tier,
    "sanitizer": _sanitizer,
}
"""Cases by the name of their part."""
