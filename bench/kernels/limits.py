"""Limits of this machine, measured by `limits.cpp`."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

_SOURCE = Path(__file__).with_name("limits.cpp")
_PROGRAM = Path(__file__).parents[2] / "build" / "bench" / "limits"


@dataclass(frozen=True)
class Limits:
    """Limits of the machine, with the requested number of threads.

    Attributes:
        memory: 10^9 bytes per second read from memory, best.
        usual_memory: the same, median: what a step can rely on.
        cache: 10^9 bytes per second read from the CPU cores' shared cache, best.
        products: 10^9 operations per second, by kind: fma_float32, and those of vnni_int8, dot_bf16, amx_bf16 and
        amx_int8 that the machine supports.
    """

    memory: float
    usual_memory: float
    cache: float
    products: dict[str, float]

    def of(self, *kinds: str) -> float:
        """Return the rate of the first of these kinds of products that the machine supports."""
        return next(self.products[kind] for kind in (*kinds, "fma_float32") if kind in self.products)

    def with_later(self, later: Limits) -> Limits:
        """Combine two measurements: the better of best values, the mean of usual ones."""
        return Limits(
            max(self.memory, later.memory),
            (self.usual_memory + later.usual_memory) / 2,
            max(self.cache, later.cache),
            {kind: max(rate, later.products[kind]) for kind, rate in self.products.items()},
        )


def measure(threads: int, prefix: tuple[str, ...] = ()) -> Limits:
    """Compile `limits.cpp` for this machine, and run it.

    Args:
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
    return Limits(memory["best"], memory["median"], cache["best"], products)
