"""Runs a core from its plan to its end."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from headrace_proto.pure.faults import is_fault

from headrace_engine.backend_choices import check_choices, step_limits
from headrace_engine.config import ComputeUnit
from headrace_engine.core.core import Core
from headrace_engine.core.failure import failure
from headrace_engine.core.link import LinkClosed, PingedLink
from headrace_engine.core.paced_link import PacedLink
from headrace_engine.core.pulse import Pulse
from headrace_engine.core.ranks import RankRunner
from headrace_engine.core.runner import Runner
from headrace_engine.core.scheduling.pace import Pace
from headrace_engine.core.speculation.row_costs import RowCosts
from headrace_engine.core.warmup import start_up
from headrace_engine.cuda_checked import why_unchecked
from headrace_engine.errors import HeadraceError, InvalidArgument
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.process.devices import has_cuda
from headrace_engine.process.ranks import RankedRunner
from headrace_engine.process.vocabulary import BegunVocabulary

if TYPE_CHECKING:
    from headrace_engine.backends.processors import Process

RunnerFactory = Callable[[CorePlan], Runner]
"""Creates the runner for a plan, without loading anything."""

BACKENDS = {name: f"headrace_engine.backends.{name}" for name in ("cpu", "cuda", "torch")}
"""Modules of the backends in this build, by name."""

AUTO_BACKEND = "auto"
"""Leaves the choice of the backend to the core: see `choose_backend`."""

_log = logging.getLogger(__name__)


def make_runner(plan: CorePlan, processes: Mapping[str, Process] = MappingProxyType({})) -> Runner:
    """Create the runner of the backend that the plan names; imports that backend only.

    Args:
        processes: the plan's logits processors that have no file, by name.

    Raises:
        InvalidArgument: there is no such backend.
    """
    backend = plan.backend
    if backend == AUTO_BACKEND:
        backend, why = choose_backend(plan.compute_unit, plan)
        if backend != "cpu":
            _log.info("backend_chosen: auto takes %s: %s", backend, why)
    if backend not in BACKENDS:
        raise InvalidArgument.field("backend", f'is "{backend}"; this build has: {", ".join(BACKENDS)}')
    if plan.tensor_parallel > 1:
        check_choices(plan, backend)
        return RankedRunner(replace(plan, backend=backend), lambda own: make_rank(own, 0, processes))
    runner: Runner = importlib.import_module(BACKENDS[backend]).make_runner(plan, processes)
    return runner


def make_rank(plan: CorePlan, rank: int, processes: Mapping[str, Process] = MappingProxyType({})) -> RankRunner:
    """Create the runner of a rank, of the backend that the plan names, which has ranks."""
    runner: RankRunner = importlib.import_module(BACKENDS[plan.backend]).make_rank(plan, rank, processes)
    return runner


def import_backend(backend: str) -> None:
    """Import a backend in advance. Failures are ignored here, since `make_runner` raises them again."""
    with suppress(Exception):
        importlib.import_module(BACKENDS[choose_backend(None)[0] if backend == AUTO_BACKEND else backend])


def choose_backend(unit: ComputeUnit | None, plan: CorePlan | None = None) -> tuple[str, str]:
    """Return the backend that "auto" takes, and why.

    Args:
        unit: kind of device; None: the best kind present.
        plan: what is to be computed; None: any plan, of which the rest is not known yet.
    """
    if unit in (ComputeUnit.CPU, ComputeUnit.CPU_NUMA):
        return "cpu", f"compute_unit = {unit}"
    if unit is None and not has_cuda():
        return "cpu", "there is no CUDA device"
    why = why_unchecked() or _why_not_cuda(plan)
    return ("torch", f"not cuda: {why}") if why else ("cuda", "its kernels are checked, and this machine runs them")


def with_step_limits(plan: CorePlan) -> CorePlan:
    """Return a plan with max_batch and max_prefill_tokens, by the kind of device where they are left to it.

    Raises:
        InvalidArgument: a step does not hold a token of every sequence.
    """
    if plan.max_batch and plan.max_prefill_tokens:
        return plan
    cuda = plan.backend != "cpu" and plan.compute_unit in (None, ComputeUnit.CUDA) and has_cuda()
    batch, tokens = step_limits(plan.max_batch or None, plan.max_prefill_tokens or None, cuda=cuda)
    return replace(plan, max_batch=batch, max_prefill_tokens=tokens)


def _why_not_cuda(plan: CorePlan | None) -> str:
    from headrace_engine.backends.cuda import readiness

    return readiness.why_no_device() if plan is None else readiness.why_not(plan)


def run_core(
    plan: CorePlan,
    link: PingedLink,
    make: RunnerFactory = make_runner,
    begun: BegunVocabulary | None = None,
    *,
    started: Callable[[], None] = lambda: None,
) -> bool:
    """Load, serve, and free everything. Return True if the core ended by Shutdown or because it was orphaned.

    Any other end is reported to the front half with CoreFailed.

    Args:
        begun: a vocabulary built in advance, which may fit the plan's model.
        started: called once everything is loaded, before the first step.
    """
    try:
        _serve(plan, link, make, begun, started)
    except LinkClosed:
        _log.info("core_orphaned: the front half is gone")
    except BaseException as error:
        if not is_fault(error):
            raise
        if not isinstance(error, HeadraceError):
            _log.exception("core_failed")
        # The runner is closed by now, so that whoever starts a successor on this news finds its memory free.
        _report(link, error)
        return False
    return True


def _serve(
    plan: CorePlan,
    link: PingedLink,
    make: RunnerFactory,
    begun: BegunVocabulary | None,
    started: Callable[[], None],
) -> None:
    plan = with_step_limits(plan)
    vocabulary = begun if begun is not None and begun.fits(plan) else BegunVocabulary.of(plan)
    # Left in reverse: the pulse's thread uses the runner, so it ends before the runner is closed.
    with closing(make(plan)) as runner, Pulse(link, runner):
        _start_and_serve(plan, link, runner, vocabulary, started)


def _start_and_serve(
    plan: CorePlan, link: PingedLink, runner: Runner, vocabulary: BegunVocabulary, started: Callable[[], None]
) -> None:
    pace = Pace(plan.step_target, plan.block_size)
    costs, draft_costs = RowCosts(), RowCosts()
    try:
        sizes = start_up(plan, runner, link, pace, costs=costs, draft_costs=draft_costs)
        paced = PacedLink(link, plan.stream_interval)
        core = Core(plan, sizes, runner, paced, vocabulary.maker, pace=pace, costs=costs, draft_costs=draft_costs)
        started()
        core.serve()
    except LinkClosed:
        if runner.lost is None:
            raise
        _log.error("core_failed: %s", runner.lost.message)  # The front half has it already.


def _report(link: PingedLink, error: BaseException) -> None:
    try:
        link.send(failure(error))
    except LinkClosed:
        _log.info("core_orphaned: the front half is gone; the failure was not reported")
