"""Measures what a CUDA card does, a part in less than eight minutes, and goes on where it was cut off.

    make gpu-bench PART=weights

measures the cases of a part, or of several, one after the other, and adds each to results/gpu-bench.jsonl as soon as
it is measured, with the card's name and the date. Cases that this code has measured on this card already are left out,
so that a run that was killed, or that stopped after its time, goes on when it is run again; `--again` measures them
anew. results/gpu.md gets the newest of each case, beside its limit and what was predicted before anything was measured.

The machine needs torch, cupy and numpy, for one part transformers, for another pytest and compute-sanitizer; and csrc's
library, as bench.gpu.check does. `--device sim` runs a part at tiny sizes on the simulated device, where times mean
nothing.

Exit status: 0, all is measured; 75, run it again for the rest; 1, a case failed and is kept as such: what it left
behind on the device ends the run, and the next one goes on behind it.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from headrace_engine.backends.cuda.device import cards
from headrace_engine.backends.cuda.device.device import CudaDevice, Device
from headrace_engine.environment import NATIVE_VARIABLE
from headrace_engine.errors import HeadraceError

from bench.common.page import GPU_CASES
from bench.gpu.library import NoLibrary, code_digest, find
from bench.gpu.parts.cases import PARTS, Case, Plan
from bench.gpu.parts.cases import SHORT as SHORT_PARTS
from bench.gpu.parts.cases import WHOLE as WHOLE_PARTS
from bench.gpu.parts.expected import Limits
from bench.gpu.parts.record import RECORDS, Record, append, page, part_table, read
from bench.gpu.parts.sanitizer import PROGRAM
from bench.gpu.plans import H100, SHORT, WHOLE
from bench.gpu.timing import limits

_LIMIT_S = 480.0
_GO_ON = 75


@dataclass(frozen=True)
class Target:
    """The device on which cases are measured, and the file of their results.

    Attributes:
        card: name of the card.
        limits: limits of the card, measured in this run.
        results: file of the results.
        code: digest of the measured code.
    """

    device: Device
    card: str
    limits: Limits
    results: Path
    code: str

    def left(self, part: str, cases: Sequence[Case], again: bool) -> list[Case]:
        """Return the cases not yet measured with this code on this card."""
        if again:
            return list(cases)
        kept = {
            record.case
            for record in read(self.results)
            if (record.part, record.card, record.code) == (part, self.card, self.code)
        }
        return [case for case in cases if case.name not in kept]

    def run(self, part: str, case: Case) -> Record:
        """Measure a case, and record it or why it failed."""
        try:
            found, error = dict(case.measure(self.device)), ""
        except Exception as raised:
            found, error = {}, f"{type(raised).__name__}: {raised}"
        date = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        record = Record(self.card, date, part, case.name, self.code, self.limits, found, error)
        append(self.results, record)
        return record


def measure(target: Target, part: str, cases: Sequence[Case], began: float, limit: float) -> int:
    """Measure cases while there is time; return the exit status.

    Args:
        began: start, by time.monotonic().
        limit: seconds from the start within which another case as long as the longest so far must fit.
    """
    longest = 0.0
    for number, case in enumerate(cases):
        at = time.monotonic()
        if at - began + longest > limit:
            print(f"gpu-bench: {len(cases) - number} cases of {part} are left: run it again")
            return _GO_ON
        record = target.run(part, case)
        print(part_table([case], {case: record}, target.limits), flush=True)
        if record.error:
            print(f"gpu-bench: {case.name} failed: {record.error}", file=sys.stderr)
            return 1
        gc.collect()
        torch.cuda.empty_cache()
        longest = max(longest, time.monotonic() - at)
    return 0


def write_page() -> None:
    """Write the page of all results of real cards."""
    cases = {part: list(make(WHOLE_PARTS)) for part, make in PARTS.items()}
    records = read(RECORDS)
    said = "Cases without a card are not measured: their limits are those of an H100."
    if not records:
        said = "**Not yet measured on a card.** Limits and predictions are for an H100."
    GPU_CASES.write(f"{said}\n\n{page(cases, records, H100)}")


def _open(device: str, results: Path) -> Target:
    """Return the device and its limits.

    Raises:
        SystemExit: there is no usable card; says what to do.
    """
    if device == "sim":
        from support.sim.device import SimDevice

        sim = SimDevice()
        return Target(sim, "sim", limits(sim, SHORT.copied, SHORT.side, SHORT.scale.repeats), results, code_digest())
    try:
        cards.check_card(0)
        os.environ[NATIVE_VARIABLE] = str(find("cuda"))
    except HeadraceError as error:
        raise SystemExit(f"gpu-bench: {error.message}") from error
    except NoLibrary as error:
        raise SystemExit(f"gpu-bench: {error}") from error
    card = CudaDevice(0)
    found = limits(card, WHOLE.copied, WHOLE.side, WHOLE.scale.repeats)
    return Target(card, torch.cuda.get_device_name(0), found, results, code_digest())


def main() -> int:
    """Measure the requested parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"parts to measure: {', '.join(PARTS)}; none: only write the page")
    parser.add_argument("--device", choices=("cuda", "sim"), default="cuda")
    parser.add_argument("--results", type=Path, help="with --device sim: file for the JSON")
    parser.add_argument("--again", action="store_true", help="also repeat cases that were measured")
    arguments = parser.parse_args()
    on_card = arguments.device == "cuda"
    if unknown := [part for part in arguments.parts if part not in PARTS]:
        parser.error(f"there is no part {unknown[0]}; there are {', '.join(PARTS)}")
    if not on_card and (arguments.results is None or not arguments.parts):
        parser.error("--device sim needs a part and --results")
    status = 0
    if arguments.parts:
        target = _open(arguments.device, RECORDS if on_card else arguments.results)
        status = _measure_parts(target, arguments.parts, WHOLE_PARTS if on_card else SHORT_PARTS, arguments.again)
    if on_card:
        write_page()
    return status


def _measure_parts(target: Target, parts: Sequence[str], plan: Plan, again: bool) -> int:
    """Measure parts in order, up to one that is not finished; return its status."""
    for part in parts:
        cases = list(PARTS[part](plan))
        if not cases:
            print(f"gpu-bench: nothing to measure for {part}: {PROGRAM} is not installed")
        if status := measure(target, part, target.left(part, cases, again), time.monotonic(), _LIMIT_S):
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
