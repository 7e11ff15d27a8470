"""The engine service with cores whose steps wait at a gate: `python gated_engine.py GATE ARGUMENT...`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import uvloop
from headrace_engine.engine.engine import Engine
from headrace_engine.process import launch_process
from headrace_engine.service.program.arguments import parse_arguments
from headrace_engine.service.program.life import Service
from headrace_proto.server.logs import configure_service

CORE = Path(__file__).with_name("gated_core.py")


async def serve(gate: str, argv: list[str]) -> int:
    """Serve like headrace-engine; return the exit status."""
    arguments = parse_arguments(argv)
    configure_service(
        "headrace_engine", json=arguments.log_json, level=arguments.log_level, engine=arguments.engine.name
    )
    launcher = partial(launch_process, program=(sys.executable, str(CORE), gate))
    return await Service(arguments, Engine(arguments.engine, launcher)).run()


if __name__ == "__main__":
    sys.exit(uvloop.run(serve(sys.argv[1], sys.argv[2:])))
