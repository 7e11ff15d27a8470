"""Runs the steps of a check, each in a process group of its own that is ended at its limit."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import IO, Any

from headrace_engine.environment import NATIVE_VARIABLE

from bench.gpu.kernel_tests import FOLDERS, WHICH, arguments
from bench.gpu.library import ROOT, code_digest
from bench.gpu.outcome import Ending, Kept, Outcome
from bench.gpu.steps import FOUND

_SHORTEST_S = 5.0
"""A step does not begin with less."""
NO_TIME = "no time is left"
"""Why a step is left out that the next run does."""
_TRACE = 12
"""Lines of what a failed step printed that are shown; the file has more."""
_ERROR_CHARS = 6000
_COUNTS = re.compile(r"(\d+) (passed|failed|skipped|errors?)\b")


@dataclass(frozen=True)
class Step:
    """A step of a check.

    Attributes:
        name: unique.
        limit: seconds after which it is killed.
        share: of the budget, by whose end it is killed.
        needed: without it no other step is done.
        program: on the path; the step is left out where it is not there. "": none.
    """

    name: str
    limit: float
    share: float = 1.0
    needed: bool = False
    program: str = ""

    def within(self, limit: float) -> Step:
        """Return the step under another limit."""
        return replace(self, limit=limit)

    def command(self, device: str) -> list[str]:
        """Return the arguments of Python."""
        kind, _, rest = self.name.partition(":")
        if kind != "tests":
            return ["-m", "bench.gpu.steps", device, self.name]
        return ["-m", "pytest", *arguments(WHICH[device], [rest])]


@dataclass
class Check:
    """A run of steps.

    Args:
        device: "cuda" or "sim".
        kept: where outcomes are written.
        budget: seconds for all steps.
        again: repeat what has passed.

    Attributes:
        outcomes: by step, those of earlier runs that still hold included.
        kept_all: False if one could not be written.
        code: digest of the code that runs.
    """

    device: str
    kept: Kept
    budget: float
    again: bool = False
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    kept_all: bool = True

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self.code = code_digest()
        self._card = ""
        self._missing = ""
        self._earlier = self.kept.read()

    @property
    def limits(self) -> Mapping[str, Any] | None:
        """What the copy and the product have reached; None if they were not measured."""
        outcome = self.outcomes.get("limits")
        return outcome.figures if outcome is not None and outcome.ending == "passed" else None

    def do(self, step: Step) -> Outcome:
        """Do a step unless it has passed before; print and keep what became of it."""
        earlier = self._earlier.get(step.name)
        if earlier is not None and self._holds(earlier) and not step.needed:
            self.outcomes[step.name] = earlier
            print(f"passed before  {step.name}", flush=True)
            return earlier
        outcome = self._outcome(step)
        if step.needed:
            self._take(step, outcome)
        outcome = self.outcomes[step.name] = replace(outcome, card=self._card)
        print(shown(outcome), flush=True)
        if outcome.ending != "left out" or earlier is None:
            self._keep(outcome)
        return outcome

    def _keep(self, outcome: Outcome) -> None:
        try:
            self.kept.keep(outcome)
        except OSError as error:
            self._lost(outcome.step, error)
            print(json.dumps(dict(outcome.figures)), flush=True)

    def write(self, name: str, text: str) -> None:
        """Write a file beside the outcomes, or say that it cannot be written."""
        try:
            self.kept.write(name, text)
        except OSError as error:
            self._lost(name, error)

    def _lost(self, name: str, error: OSError) -> None:
        self.kept_all = False
        print(f"gpu-check: {name} could not be written to {self.kept.folder}: {error.strerror}", file=sys.stderr)

    def _holds(self, earlier: Outcome) -> bool:
        same = (earlier.code, earlier.card, earlier.ending) == (self.code, self._card, "passed")
        return same and not self.again

    def _take(self, step: Step, outcome: Outcome) -> None:
        """Take what later steps need from one that all need."""
        if outcome.ending != "passed":
            self._missing = step.name
        self._card = str(outcome.figures.get("card", self._card))
        if "folder" in outcome.figures:
            os.environ[NATIVE_VARIABLE] = str(outcome.figures["folder"])

    def _outcome(self, step: Step) -> Outcome:
        date = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        began = time.monotonic()
        left = self.budget * step.share - (began - self._began)
        if why := self._why_not(step, left):
            return Outcome(step.name, "left out", 0.0, error=why, code=self.code, date=date)
        ending, output = _run(step.command(self.device), min(step.limit, left))
        found = _figures(output)
        if ending == "passed" and not found:
            ending, output = "failed", f"it ended without figures:\n{output}"
        error = "" if ending == "passed" else output[-_ERROR_CHARS:].strip()
        return Outcome(step.name, ending, round(time.monotonic() - began, 1), found, error, code=self.code, date=date)

    def _why_not(self, step: Step, left: float) -> str:
        """Return why a step does not begin with the seconds left; "" if it does."""
        if self._missing:
            return f"{self._missing} did not pass"
        if step.program and shutil.which(step.program) is None:
            return f"{step.program} is not on the path"
        return NO_TIME if left < _SHORTEST_S else ""


def shown(outcome: Outcome) -> str:
    """Return a line on an outcome, and the end of what it printed if it failed."""
    found = outcome.figures if outcome.step.startswith("tests:") else {}
    counts = "".join(f", {count} {what}" for what, count in found.items())
    line = f"{outcome.ending:13}  {outcome.step}  {outcome.seconds:.1f} s{counts}"
    trace = outcome.error.splitlines()[-_TRACE:]
    return "\n".join([line, *(f"    {text[:200]}" for text in trace)])


def _run(command: list[str], limit: float) -> tuple[Ending, str]:
    """Run Python in a process group that ends with this process; return what it printed."""
    paths = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH", ""), FOLDERS)))
    env = {**os.environ, "PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONUNBUFFERED": "1"}
    tied = [sys.executable, str(ROOT / "deploy" / "tied.py"), str(os.getpid()), *command]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            tied, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            return "too long", _printed(output) + f"\nkilled after {limit:.0f} s" + _killed(process)
        finally:
            _killed(process)
        if status < 0:
            return "failed", f"{_printed(output)}\nended by {signal.Signals(-status).name}"
        return "failed" if status else "passed", _printed(output)


def _killed(process: subprocess.Popen[bytes]) -> str:
    """End the process and its children; return what is to be said of it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return ""
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        return ", and it does not end: the driver holds it"
    return ""


def _printed(output: IO[bytes]) -> str:
    output.seek(0)
    return output.read().decode(errors="replace")


def _figures(output: str) -> dict[str, Any]:
    """Return what a step has found: the figures of its last line, or pytest's counts."""
    last = output.rstrip().rpartition("\n")[2]
    if last.startswith(FOUND):
        return dict(json.loads(last.removeprefix(FOUND)))
    return {what: int(count) for count, what in _COUNTS.findall(last)}
