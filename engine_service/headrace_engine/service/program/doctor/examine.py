"""Runs all examinations of a command line."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace

from headrace_engine.engine.cores.core_link import CoreLauncher
from headrace_engine.engine.engine import Engine
from headrace_engine.service.program.arguments import Arguments
from headrace_engine.service.program.doctor.backends import examine_backends
from headrace_engine.service.program.doctor.findings import Finding, all_work, as_json, as_table
from headrace_engine.service.program.doctor.machine import examine_machine
from headrace_engine.service.program.doctor.models import examine_model
from headrace_engine.service.program.doctor.places import examine_folders, examine_ports


async def examine(arguments: Arguments, launcher: CoreLauncher) -> int:
    """Print what was found. Return the exit status: 0, or 1 if something does not work."""
    findings = [*examine_machine(), *examine_backends(arguments.engine.backend)]
    findings += examine_ports(arguments.listen, arguments.metrics)
    findings += examine_folders(arguments.engine)
    findings += [finding async for finding in _models(arguments, launcher)]
    sys.stdout.write((as_json if arguments.doctor_json else as_table)(findings) + "\n")
    return 0 if all_work(findings) else 1


async def _models(arguments: Arguments, launcher: CoreLauncher) -> AsyncIterator[Finding]:
    """Yield what was found about the models, which may lie anywhere, in an engine that keeps nothing."""
    if not arguments.models:
        return
    engine = Engine(replace(arguments.engine, model_roots=None, write_roots=(), state_dir=None), launcher)
    try:
        for config in arguments.models:
            async with aclosing(examine_model(engine, config)) as found:
                async for finding in found:
                    yield finding
    finally:
        await engine.close()
