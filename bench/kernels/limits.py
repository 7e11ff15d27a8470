"""Limits of this machine, measured by `limits.cpp`."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from headrace_engine.native import Isa, choose_isa, load

_SOURCE = Path(__file__).with_name("limits.cpp")
_PROGRAM = Path(__file__).parents[2] / "build" / "bench" / "limits"

_INSTRUCTIONS: dict[str, dict[Isa, str]] = {
    "float32": {Isa.AVX2: "fma_float32_256", Isa.AVX512: "fma_float32"},
    "bfloat16": {
        Isa.AVX2: "fma_float32_256",
        Isa.AVX512: "fma_float32",
        Isa.AVX512_BF16: "dot_bf16",
        Isa.AMX: "amx_bf16",
    },
    "int16": {
        Isa.AVX2: "madd_int16_256",
        Isa.AVX2_VNNI: "vnni_int16_256",
        Isa.AVX512: "madd_int16",
        Isa.AVX512_VNNI: "vnni_int16",
        Isa.AMX: "amx_bf16",
    },
    "int8": {
        Isa.AVX2: "madd_int16_256",
        Isa.AVX2_VNNI: "vnni_int8_256",
        Isa.AVX512: "madd_int16",
        Isa.AVX512_VNNI: "vnni_int8",
        Isa.AMX: "amx_int8",
    },
    "int4": {
        Isa.AVX2: "madd_int8_256",
        Isa.AVX2_VNNI: "vnni_int8_256",
        Isa.AVX512: "madd_int8",
        Isa.AVX512_VNNI: "vnni_int8",
        Isa.AMX: "amx_int8",
    },
}
"""Kinds of products by factors, from the instruction set on that has them: bfloat16 are weights of that, int16 codes
with whole activations, int8 and int4 codes of so many bits with activations of 8 bits."""


def factors_of(bits: float, codes: bool) -> str:
    """Return what products of weights of so many bits multiply; codes: with activations of 8 bits."""
    if bits >= 16:
        return "bfloat16"
    if not codes:
        return "int16"
    return "int8" if bits >= 8 else "int4"


@dataclass(frozen=True)
class Limits:
    """Limits of the machine, with the requested number of threads.

    Attributes:
        memory: 10^9 bytes per second read from memory, best.
        usual_memory: the same, median: what a step can rely on.
        cache: 10^9 bytes per second read from the CPU cores' shared cache, best.
        products: 10^9 operations per second, by kind, those that the machine supports. A name that ends in 256 is of
            registers of so many bits; madd are products and sums in two instructions.
        isa: instruction set whose products bound the kernels.
    """

    memory: float
    usual_memory: float
    cache: float
    products: dict[str, float]
    isa: Isa

    def peak(self, factors: str) -> float:
        """Return the rate of the products that the instruction set has for these factors (`factors_of`, or float32)."""
        kinds = _INSTRUCTIONS[factors]
        return self.products[kinds[max(isa for isa in kinds if isa <= self.isa)]]

    def with_later(self, later: Limits) -> Limits:
        """Combine two measurements: the better of best values, the mean of usual ones."""
        return Limits(
            max(self.memory, later.memory),
            (self.usual_memory + later.usual_memory) / 2,
            max(self.cache, later.cache),
            {kind: max(rate, later.products[kind]) for kind, rate in self.products.items()},
            self.isa,
        )


def measure(threads: int, prefix: tuple[str, ...] = (), isa: Isa = Isa.NONE) -> Limits:
    """Compile `limits.cpp` for this machine, and run it.

    Args:
        isa: instruction set of the kernels; NONE: the one that the engine would choose.
        prefix: prefix of the command, such as one that raises its priority.
    """
    _PROGRAM.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["g++", "-std=c++20", "-O3", "-march=native", "-pthread", str(_SOURCE), "-o", str(_PROGRAM)], check=True
    )
    ran = subprocess.run([*prefix, str(_PROGRAM), str(threads)], check=True, stdout=subprocess.PIPE)
    rates = json.loads(ran.stdout)
    where = "all" if threads > 1 else "one"
    ending = f"_gops_{where}"
    products = {name.removesuffix(ending): rates[name]["best"] for name in rates if name.endswith(ending)}
    memory, cache = rates[f"memory_read_gbs_{where}"], rates[f"shared_cache_read_gbs_{where}"]
    return Limits(memory["best"], memory["median"], cache["best"], products, isa or choose_isa(load("cpu")))
