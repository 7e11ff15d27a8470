"""Validates and measures the kernels and the decoder on one CUDA card, in less than five minutes.

    make gpu-check

runs the tests of the kernels on the card, then each op of the decoder beside the time that its bytes and operations
must take, with a copy and a product measured in the same run, then decoders of two shapes. The machine needs torch,
cupy, numpy and pytest, and csrc's library: HEADRACE_NATIVE_DIR names its folder, else nvcc builds it.

Results go to results/gpu.md, and as a line to results/gpu.jsonl. `--predict` writes the floors alone, for a card that
is not there. `--device sim` runs all of it at tiny sizes on the simulated device, where times mean nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from headrace_engine.backends.cuda.device import cards
from headrace_engine.backends.cuda.device.device import CudaDevice, Device
from headrace_engine.environment import NATIVE_VARIABLE
from headrace_engine.errors import HeadraceError
from headrace_engine.models.spec import DecoderSpec

from bench.common.page import GPU, GPU_PREDICTED
from bench.gpu import costs, decode, report
from bench.gpu.ops import Ops, limits
from bench.gpu.shapes import LLAMA, SMOL, TINY

ROOT = Path(__file__).parents[2]
H100 = (3.0e12, 798e12)
"""Bytes per second of a copy, and operations per second of a bfloat16 product, as measured on another H100."""


@dataclass(frozen=True)
class Plan:
    """Sizes of the measurements.

    Attributes:
        copied: bfloat16 numbers of the copy.
        side: side of the square matrices of the product.
        layer: the decoder whose ops are measured.
        shapes: the decoders that are measured whole, by name.
    """

    copied: int
    side: int
    layer: DecoderSpec
    scale: costs.Scale
    shapes: Mapping[str, DecoderSpec]
    load: decode.Load


WHOLE = Plan(1 << 29, 8192, LLAMA, costs.WHOLE, {"SmolLM2-135M": SMOL, "Llama 3.1 8B": LLAMA}, decode.WHOLE)
SHORT = Plan(1 << 12, 32, TINY, costs.SHORT, {"tiny": TINY}, decode.SHORT)

_TESTS = ("test_device_*.py", "test_norm.py", "test_sampling.py", "test_logit_changes.py")


def predict() -> None:
    """Write the floors for an H100."""
    parts = [
        f"**Not yet measured on a card.** Floors for an H100, where {report.limits_line(H100)} "
        "(measured elsewhere, not by this command):",
        report.op_table(costs.costs(LLAMA, costs.WHOLE), H100, None),
        *(_decode_part(name, WHOLE, H100, None) for name in WHOLE.shapes),
    ]
    GPU_PREDICTED.write("\n\n".join(parts))


def check_card() -> int:
    """Test and measure the card; return the exit status.

    Raises:
        SystemExit: there is no usable card; says what to do.
    """
    try:
        cards.check_card(0)
    except HeadraceError as error:
        raise SystemExit(f"gpu-check: {error.message}") from error
    os.environ[NATIVE_VARIABLE] = str(library())
    tested = _test()
    said = "passed" if tested == 0 else f"FAILED (pytest ended with {tested})"
    page = measure(CudaDevice(0), torch.cuda.get_device_name(0), WHOLE, report.RUNS)
    page += f"\n\nTests of the kernels {said}."
    print(page)
    GPU.write(page)
    return tested


def measure(device: Device, card: str, plan: Plan, results: Path) -> str:
    """Measure everything, and add it to the results.

    Args:
        card: name of the card.
        plan: sizes of the measurements.
        results: file of one JSON object per line.

    Returns:
        The tables.
    """
    found = limits(device, plan.copied, plan.side, plan.scale.repeats)
    timed = Ops(plan.layer, device, plan.scale).measure()
    decoded = {}
    for name, spec in plan.shapes.items():
        torch.cuda.empty_cache()
        decoded[name] = decode.measure(spec, device, plan.load)
    date = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    report.keep(results, card, date, found, timed, decoded)
    parts = [f"{date}. {card}: {report.limits_line(found)}."]
    parts.append(report.op_table(costs.costs(plan.layer, plan.scale), found, timed))
    parts += [_decode_part(name, plan, found, measured) for name, measured in decoded.items()]
    return "\n\n".join(parts)


def _decode_part(name: str, plan: Plan, found: tuple[float, float], measured: Sequence[decode.Measured] | None) -> str:
    load = plan.load
    text = (
        f"{name}, random weights in bfloat16, for up to {load.limit:,} tokens, prompts of {load.prompt} and answers of "
        f"{load.new} ids, all at once:"
    )
    return f"{text}\n\n{report.decode_table(plan.shapes[name], load, found, measured)}"


def library() -> Path:
    """Return the folder that the environment names, or one in which nvcc builds the library for this card."""
    named = os.environ.get(NATIVE_VARIABLE)
    if named:
        return Path(named)
    folder = ROOT / "build" / "card"
    options = ("-DCORE_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=native")
    subprocess.run(["cmake", "-S", ROOT / "csrc", "-B", folder, *options], check=True)
    subprocess.run(["cmake", "--build", folder, "--target", "core_cuda", "--parallel"], check=True)
    return folder


def kernel_tests(which: str, patterns: Sequence[str] = _TESTS) -> list[str]:
    """Return pytest's arguments for testing a library without the project's plugins and settings.

    The folders engine_service and tests must be on Python's module path.

    Args:
        which: the library, "cuda" or "sim", for pytest's -k.
        patterns: patterns of file names.
    """
    folder = ROOT / "tests" / "native"
    files = [str(file) for pattern in patterns for file in sorted(folder.rglob(pattern))]
    settings = ["-q", "-k", which, "-p", "no:cacheprovider", "-c", os.devnull]
    return [*settings, f"--rootdir={folder}", f"--confcutdir={folder}", *files]


def _test() -> int:
    """Run the tests on the card; return their exit status."""
    folders = os.pathsep.join(str(ROOT / name) for name in ("proto", "engine_service", "tests"))
    command = [sys.executable, "-m", "pytest", *kernel_tests("cuda")]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": folders}, check=False).returncode


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predict", action="store_true", help="only write what an H100 could do at best")
    parser.add_argument("--device", choices=("cuda", "sim"), default="cuda")
    parser.add_argument("--results", type=Path, help="with --device sim: file for the JSON")
    arguments = parser.parse_args()
    if arguments.predict:
        predict()
    elif arguments.device == "cuda":
        return check_card()
    elif arguments.results is None:
        parser.error("--device sim needs --results")
    else:
        from support.sim.device import SimDevice

        print(measure(SimDevice(), "sim", SHORT, arguments.results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
