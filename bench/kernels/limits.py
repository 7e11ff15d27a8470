"""What this machine can do at best, by `limits.cpp`."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

_SOURCE = Path(__file__).with_name("limits.cpp")
_PROGRAM = Path(__file__).parents[2] / "build" / "bench" / "limits"


@dataclass(frozen=True)
class Limits:
    """The machine, on all threads that were asked for.

    Attributes:
        memory: 10^9 bytes a second that can be read, at best.
        usual_memory: the same, median: what a step can count on.
        cache: 10^9 bytes a second that can be read from the cache that cores share, at best.
        products: 10^9 operations a second, by kind: fma_float32, and what the machine has of vnni_int8, dot_bf16,
            amx_bf16 and amx_int8.
    """

    memory: float
    usual_memory: float
    cache: float
    products: dict[str, float]

    def of(self, *kinds: str) -> float:
        """The rate of the first of some kinds of products that the machine has."""
        return next(self.products[kind] for kind in (*kinds, "fma_float32") if kind in self.products)

    def with_later(self, later: Limits) -> Limits:
        """Of two measurements: the better of what is reached at best, the mean of what is usual."""
        return Limits(
            max(self.memory, later.memory),
            (self.usual_memory + later.usual_memory) / 2,
            max(self.cache, later.cache),
            {kind: max(rate, later.products[kind]) for kind, rate in self.products.items()},
        )


def measure(threads: int, prefix: tuple[str, ...] = ()) -> Limits:
    """Compile for this machine, and run.

    Args:
        prefix: of the command, such as that which gives it priority.
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
