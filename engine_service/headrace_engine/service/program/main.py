"""The program headrace-engine: one engine behind gRPC, until a signal ends it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import uvloop
from headrace_proto.server.logs import configure_service
from headrace_proto.server.traces import start_tracing

from headrace_engine import child_logs
from headrace_engine.config import ModelFormat
from headrace_engine.engine.cores.core_link import CoreLauncher
from headrace_engine.engine.engine import Engine
from headrace_engine.process import EarlyLauncher, launch_process, launch_thread
from headrace_engine.process.serialize import run_serializer
from headrace_engine.service.program.arguments import Arguments, parse_arguments
from headrace_engine.service.program.life import Service

SWITCH_INTERVAL = 0.0005
"""Seconds after which a thread yields Python's lock (default 0.005), so that tokenizing does not stall the loop."""


def main(argv: Sequence[str] | None = None, launcher: CoreLauncher | None = None) -> int:
    """Serve until SIGTERM or SIGINT; a second signal cuts what still runs.

    Args:
        argv: arguments; None: those of the program.
        launcher: starts cores; None: as --core says.

    Returns:
        The exit status: 0, or 1 if the engine could not start what the command line names, or was cut.
    """
    arguments = parse_arguments(argv)
    if arguments.doctor:
        return _examine(arguments, launcher)
    configure_service(
        child_logs.PACKAGE, json=arguments.log_json, level=arguments.log_level, engine=arguments.engine.name
    )
    child_logs.announce(json_lines=arguments.log_json, level=arguments.log_level, engine=arguments.engine.name)
    if launcher is None:
        launcher = _launcher(arguments)
    sys.setswitchinterval(SWITCH_INTERVAL)
    flush = start_tracing("headrace-engine", **{"service.instance.id": arguments.engine.name})
    try:
        return uvloop.run(_serve(arguments, launcher))
    finally:
        flush()


def _examine(arguments: Arguments, launcher: CoreLauncher | None) -> int:
    """Say what would come of the command line. Return the exit status: 1 if something does not work."""
    # Imports torch, which takes seconds.
    from headrace_engine.service.program.doctor.examine import examine

    configure_service(child_logs.PACKAGE, json=arguments.log_json, level="error", engine=arguments.engine.name)
    child_logs.announce(json_lines=arguments.log_json, level="error", engine=arguments.engine.name)
    plain = launch_thread if arguments.core_threads else launch_process
    try:
        return uvloop.run(examine(arguments, launcher or plain))
    except KeyboardInterrupt:
        return 130


def _launcher(arguments: Arguments) -> CoreLauncher:
    """Return the launcher. With a --model its core process starts now, while the service starts too."""
    if arguments.core_threads:
        return launch_thread
    if not arguments.models:
        return launch_process
    first = arguments.models[0]
    plain = first.format in (None, ModelFormat.AUTO) and not first.file_prefix and os.path.exists(first.model_path)
    return EarlyLauncher(arguments.engine.backend, first.model_path if plain else "")


async def _serve(arguments: Arguments, launcher: CoreLauncher) -> int:
    return await Service(arguments, Engine(arguments.engine, launcher, serializer=run_serializer)).run()


if __name__ == "__main__":
    sys.exit(main())
