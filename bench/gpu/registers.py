"""Registers and shared memory of each kernel on each kind of card, and how many blocks of threads that allows.

    make cuda-report

builds the kernels for all kinds of cards, and writes results/gpu.md of what ptxas says of them; no card is needed. Exit
status 1: a kernel spills registers or has a stack, which is memory beside its registers.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.common.page import GPU_KERNELS, measurement
from bench.gpu.report import table

_KERNEL = re.compile(
    r"Compiling entry function '(?P<name>\S+)' for '(?P<card>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)
_STATIC = re.compile(r"(\d+) bytes smem")
_LAUNCHED = re.compile(r"(\w+)(?:<(.*)>)?\(")


@dataclass(frozen=True)
class Multiprocessor:
    """What blocks of threads share. All have 64 Ki registers, given to a warp in units of 256.

    Attributes:
        cards: the cards that have it.
        threads, blocks, shared: at most; bytes of shared memory, of which each block takes 1 KiB more than it asks for.
    """

    cards: str
    threads: int
    blocks: int
    shared: int


CARDS = {
    "sm_80": Multiprocessor("A100", 2048, 32, 164 << 10),
    "sm_90a": Multiprocessor("H100", 2048, 32, 228 << 10),
    "sm_100": Multiprocessor("B200", 2048, 32, 228 << 10),
    "sm_120": Multiprocessor("RTX 50", 1536, 24, 100 << 10),
}
_REGISTERS = 64 << 10
_RESERVED = 1 << 10


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched.

    Attributes:
        threads: of a block, at most.
        shared: bytes of shared memory beside what the kernel declares, by its template arguments.
    """

    threads: int
    shared: Callable[[list[str]], int] = lambda arguments: 0


def _decode_bytes(arguments: list[str]) -> int:
    """Return the outputs of four warps for eight heads."""
    return 4 * 8 * int(arguments[1]) * 4


def _prefill_bytes(arguments: list[str]) -> int:
    """Return tiles of 64 queries, and of keys and values, with two sets of the scales of both."""
    dim = int(arguments[1])
    keys = 64 if dim <= 128 else 32
    return (64 + 2 * keys) * (dim + 8) * 2 + 2 * keys * 2 * 8


def _quantized_bytes(arguments: list[str]) -> int:
    """Return the stages of codes, scales, offsets and rows of x."""
    bits, eights = int(arguments[1]), int(arguments[2])
    deep = 4 if eights <= 2 else 2
    stage = 4 * (64 * 64 * bits // 8 + 2 * 2 * 64 * 4) + deep * eights * 8 * 64 * 2
    return stage * (4 if 4 * stage <= 99 << 10 else 3)


LAUNCHES: Mapping[str, Launch] = {
    "append_kv_kernel": Launch(128),
    "copy_blocks_kernel": Launch(256),
    "decode_attention_kernel": Launch(128, _decode_bytes),
    "gated_codes_kernel": Launch(512),
    "gated_rows_kernel": Launch(256),
    "gather_rows_kernel": Launch(256),
    "join_splits_kernel": Launch(256),
    "layer_norm_kernel": Launch(512),
    "prefill_attention_kernel": Launch(128, _prefill_bytes),
    "quantize_rows_kernel": Launch(512),
    "quantized_linear_kernel": Launch(128, _quantized_bytes),
    "rms_norm_codes_kernel": Launch(512),
    "rms_norm_kept": Launch(512),
    "rms_norm_streamed": Launch(512),
    "sample_rows_kernel": Launch(512),
    "scaled_sums_kernel": Launch(256),
    "unpack_rows_kernel": Launch(256),
}
"""By the kernel's name; tests compare them with the sources."""


@dataclass(frozen=True)
class Kernel:
    """What ptxas says of a kernel for a card.

    Attributes:
        name: as C++ writes it, without namespaces and parameters.
        card: such as "sm_90a".
        static: bytes of shared memory that it declares.
        beside: bytes of stack, and of stores and loads of spilled registers.
    """

    name: str
    card: str
    registers: int
    static: int
    beside: int

    @property
    def launch(self) -> Launch:
        """How it is launched.

        Raises:
            SystemExit: LAUNCHES does not say.
        """
        base = self.name.partition("<")[0]
        if base not in LAUNCHES:
            raise SystemExit(f"cuda-report: LAUNCHES of bench.gpu.registers has no {base}")
        return LAUNCHES[base]

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        _, _, arguments = self.name.rstrip(">").partition("<")
        return self.static + self.launch.shared(arguments.split(", "))

    def together(self) -> tuple[int, str]:
        """Return how many blocks a multiprocessor holds at once, and what limits them."""
        has, threads = CARDS[self.card], self.launch.threads
        of_warp = -(-self.registers * 32 // 256) * 256
        bounds = {
            "threads": has.threads // threads,
            "blocks": has.blocks,
            "shared memory": has.shared // (self.shared + _RESERVED),
            "registers": _REGISTERS // (of_warp * (threads // 32)),
        }
        limit = min(bounds, key=lambda name: bounds[name])
        return bounds[limit], limit


def read(report: str) -> list[Kernel]:
    """Return the kernels of what the build keeps of ptxas."""
    found = [match.groupdict() for match in _KERNEL.finditer(report)]
    names = demangled([each["name"] for each in found])
    kernels = []
    for name, each in zip(names, found, strict=True):
        static = _STATIC.search(each["rest"])
        beside = int(each["stack"]) + int(each["stores"]) + int(each["loads"])
        kernels.append(Kernel(name, each["card"], int(each["registers"]), int(static[1]) if static else 0, beside))
    return kernels


def demangled(names: list[str]) -> list[str]:
    """Return names as C++ writes them, without namespaces and parameters."""
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    short = []
    for line in done.stdout.splitlines():
        plain = re.sub(r"\(anonymous namespace\)::|\bcore::|\bdecode::|\bprefill::|^void |\((?:int|bool)\)", "", line)
        plain = plain.replace("__nv_bfloat16", "bfloat16").replace("__half", "float16")
        match = _LAUNCHED.match(plain)
        if match is None:
            raise SystemExit(f"cuda-report: no kernel has the name {line}")
        base, arguments = match.groups()
        short.append(base if arguments is None else f"{base}<{arguments}>")
    return short


def page(kernels: list[Kernel]) -> str:
    """Return a table of all kernels: registers on each card, and blocks of threads that fit at once."""
    by_name: dict[str, dict[str, Kernel]] = {}
    for kernel in kernels:
        by_name.setdefault(kernel.name, {})[kernel.card] = kernel
    cards = [card for card in CARDS if any(card in each for each in by_name.values())]
    heads = ["kernel", "threads", "shared bytes", *(f"{card} ({CARDS[card].cards})" for card in cards)]
    rows = []
    for name, each in sorted(by_name.items()):
        one = next(iter(each.values()))
        shares = [_share(each[card]) if card in each else "–" for card in cards]
        rows.append([f"`{name}`", str(one.launch.threads), f"{max(k.shared for k in each.values()):,}", *shares])
    text = (
        "Registers of a thread; blocks of threads that a multiprocessor holds at once, and what allows no more: "
        "registers (r), shared memory (s), threads (t), blocks (b). No kernel spills registers."
    )
    return f"{text}\n\n{table(heads, rows)}"


def _share(kernel: Kernel) -> str:
    count, limit = kernel.together()
    return f"{kernel.registers} r, {count} ({limit[0]})"


def main() -> int:
    """Write the page; return the exit status."""
    parser: argparse.ArgumentParser = measurement(__doc__)
    parser.add_argument("report", type=Path, help="core_cuda.ptxas.txt of a build")
    arguments = parser.parse_args()
    kernels = read(arguments.report.read_text(encoding="utf-8"))
    if not kernels:
        raise SystemExit(f"cuda-report: {arguments.report} has no kernels")
    if spilling := [f"{kernel.name} for {kernel.card}" for kernel in kernels if kernel.beside]:
        print(f"cuda-report: memory beside registers in {', '.join(spilling)}", file=sys.stderr)
        return 1
    text = page(kernels)
    print(text)
    if arguments.write:
        GPU_KERNELS.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
