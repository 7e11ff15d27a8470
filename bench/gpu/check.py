"""Validates and measures the kernels and the decoder on one CUDA card, within a quarter of an hour.

    make gpu-check

does the steps below one after the other, each in a process of its own with a limit, so that a kernel that hangs or
fails takes its own step with it and no other:

    environment, library    the packages, the card, csrc's library: without them the rest is left out
    tests:FILE              the tests of the kernels, a file at a time
    limits                  a copy and a product, which the floors of all else derive from
    ops:GROUP               each op of the decoder
    decode:SHAPE:SAMPLING   decoders of two shapes, all greedy and all sampled
    torch:SHAPE:SAMPLING    the same by the torch backend
    tokens                  greedy ids beside those of the torch backend, on the same weights
    sanitizer:TOOL:FILE     tests of kernels under NVIDIA's compute-sanitizer, where that is on the path

What became of a step is written to the folder --out as soon as it is known, a file of JSON each, and page.md there
shows all that is known. Once all steps are done, cuda_checked.json there has what `--backend auto` goes by, and the
last line says whether it takes the cuda backend. Steps that have passed there with the same code on the same card are
not done again, so that a run that was cut off goes on. The machine needs torch, cupy, numpy, transformers and pytest,
and csrc's library: HEADRACE_NATIVE_DIR names its folder, else the one that `make cuda-all` built of these sources is
taken, else nvcc builds it.

`--adopt FOLDER` writes what such a folder holds into results/gpu.md and results/gpu.jsonl, and cuda_checked.json into
the engine's package if it lets `auto` take the cuda backend. `--predict` writes the floors alone. `--device sim` does
all of it at tiny sizes on the simulated device, where times mean nothing.

Exit status: 0, all has passed; 1, a step failed, or its outcome could not be written; 75, steps were left out for lack
of time: run it again.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from headrace_engine.cuda_checked import RESULT, SANITIZERS, problems_of, why_unchecked

from bench.gpu.kernel_tests import files
from bench.gpu.library import code_digest
from bench.gpu.outcome import Kept
from bench.gpu.running import NO_TIME, Check, Step

_GO_ON = 75
_NAMED = 4
"""Steps that are named where many are left."""
_BUDGET_S = 780.0
"""A quarter of an hour less what starting a machine and fetching results may take."""
_TESTS_SHARE = 0.6
"""Of the budget, that tests may take altogether."""
_PACE = {"cuda": 1.0, "sim": 10.0}
"""What limits are multiplied by."""


def steps(device: str) -> list[Step]:
    """Return all steps in order."""
    from bench.gpu.decode import KINDS
    from bench.gpu.ops import GROUPS
    from bench.gpu.parts import sanitizer
    from bench.gpu.plans import PLANS

    pace, plan = _PACE[device], PLANS[device]
    tests = [Step(f"tests:{name}", 150.0 * pace, _TESTS_SHARE) for name in files()]
    ops = [Step(f"ops:{group}", 90.0 * pace) for group in GROUPS]
    loads = [f"{name}:{kind}" for name in plan.shapes for kind in KINDS]
    decoders = [Step(f"{backend}:{load}", 150.0 * pace) for backend in ("decode", "torch") for load in loads]
    sanitizers = [
        Step(f"sanitizer:{tool}:{file}", sanitizer.LIMIT_S * pace, program=sanitizer.PROGRAM)
        for tool in SANITIZERS
        for file in plan.sanitized
    ]
    limits, tokens = Step("limits", 60.0 * pace), Step("tokens", 90.0 * pace)
    return [*needed(pace), *tests, limits, *ops, *decoders, tokens, *sanitizers]


def needed(pace: float = 1.0) -> list[Step]:
    """Return the steps without which no other is done.

    Args:
        pace: what limits are multiplied by.
    """
    return [Step("environment", 90.0 * pace, needed=True), Step("library", 300.0 * pace, needed=True)]


def chosen(every: Sequence[Step], patterns: Sequence[str], limits: Sequence[str]) -> list[Step]:
    """Return the steps that patterns of names choose, all if there are none, under other limits where these say so.

    Raises:
        ValueError: a pattern or a limit names no step.
    """
    times = dict(limit.rpartition("=")[::2] for limit in limits)
    for pattern in (*patterns, *times):
        if not any(fnmatch.fnmatchcase(step.name, pattern) for step in every):
            raise ValueError(f"there is no step {pattern}; there are {', '.join(step.name for step in every)}")
    some = [step for step in every if step.needed or not patterns or any(
        fnmatch.fnmatchcase(step.name, pattern) for pattern in patterns)]  # fmt: skip
    return [step.within(float(times[step.name])) if step.name in times else step for step in some]


def main() -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", metavar="STEP", help="patterns of the steps to do; all without")
    parser.add_argument("--device", choices=("cuda", "sim"), default="cuda")
    parser.add_argument("--out", type=Path, default=Path("build/gpu-check"), help="folder of the outcomes")
    parser.add_argument("--budget", type=float, default=_BUDGET_S, metavar="SECONDS", help="for all steps together")
    parser.add_argument("--limit", action="append", default=[], metavar="STEP=SECONDS", help="of one step")
    parser.add_argument("--again", action="store_true", help="also repeat steps that have passed")
    parser.add_argument("--adopt", type=Path, metavar="FOLDER", help="only write a folder's outcomes into results/")
    parser.add_argument("--predict", action="store_true", help="only write what an H100 could do at best")
    arguments = parser.parse_args()
    if arguments.predict or arguments.adopt:
        from bench.gpu import written

        written.predict() if arguments.predict else adopt(Kept(arguments.adopt))
        return 0
    try:
        import torch  # noqa: F401
    except ImportError:
        every = needed()  # which say so
    else:
        every = steps(arguments.device)
    try:
        some = chosen(every, arguments.steps, arguments.limit)
    except ValueError as error:
        parser.error(str(error))
    check = Check(arguments.device, Kept(arguments.out), arguments.budget, arguments.again)
    return status(check, some)


def status(check: Check, some: Sequence[Step]) -> int:
    """Do steps and write the page; return the exit status."""
    outcomes = [check.do(step) for step in some]
    failed = any(outcome.ending in ("failed", "too long") for outcome in outcomes) or not check.kept_all
    if "limits" in {step.name for step in some} and check.limits is not None:
        from bench.gpu import written

        page = written.page(check.outcomes, check.device)
        print(page)
        check.write("page.md", page + "\n")
        print(_judged(check))
        failed = failed or not check.kept_all
    return 1 if failed else _GO_ON if any(outcome.error == NO_TIME for outcome in outcomes) else 0


def _judged(check: Check) -> str:
    """Write the result by which `auto` chooses, once all steps are done; return what it will say."""
    from bench.gpu import checked

    if undone := checked.undone(check.outcomes, (step.name for step in steps(check.device)), check.code):
        check.kept.remove(RESULT.name)
        return f"auto: {_some(undone)} must be done before it can take cuda"
    check.write(RESULT.name, json.dumps(checked.result(check.outcomes), indent=1) + "\n")
    why = why_unchecked(check.kept.folder / RESULT.name)
    return f"auto: not cuda: {why}" if why else "auto: cuda, once this is adopted"


def adopt(kept: Kept) -> None:
    """Write the outcomes of a folder into the results, and if all is green what `auto` goes by into the package.

    Raises:
        SystemExit: there are none of a card.
    """
    from bench.gpu import checked, written

    outcomes = kept.read()
    written.adopt(outcomes)
    if undone := checked.undone(outcomes, (step.name for step in steps("cuda")), code_digest()):
        print(f"auto: {_some(undone)} must be done, with this code, before it can take cuda")
        return
    result = checked.result(outcomes)
    if problems := "; ".join(problems_of(result)):
        print(f"auto: not cuda: {problems}")
        return
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"auto: cuda, by {RESULT}")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more steps" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
