"""The engine's own flags on its command line."""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace_proto.pure.addresses import Address, read_address
from headrace_proto.server.arguments import seconds

from headrace_engine.core.scheduling.pace import LONGEST, SHORTEST, TIMES
from headrace_engine.engine.config.options import FILE_LIMIT, STREAM_INTERVAL
from headrace_engine.environment import PROCESSORS_VARIABLE
from headrace_engine.process import AUTO_BACKEND, BACKENDS

EXAMINED = "examined"
"""Name of the model that --doctor PATH examines."""


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of an engine, besides those of both servers and those of its models."""
    parser.add_argument("--name", default="engine", help="name of the engine in handles and logs; default %(default)s")
    _add_sources(parser)
    parser.add_argument(
        "--backend",
        choices=[AUTO_BACKEND, *BACKENDS],
        default=AUTO_BACKEND,
        help="compute backend; default %(default)s: torch on CUDA devices, else cpu. "
        "On CUDA devices nothing has been tried yet, by torch or by the experimental cuda",
    )
    parser.add_argument(
        "--logits-processor",
        action="append",
        metavar="NAME=PATH",
        help=f".py or .cu file that requests may use as NAME; repeatable; default: ${PROCESSORS_VARIABLE}, "
        "with entries separated by semicolons",
    )
    parser.add_argument(
        "--secret-file",
        type=Path,
        metavar="FILE",
        help="file of secrets, one a line; every call must bring one, so that only gateways that know it may call",
    )
    parser.add_argument(
        "--metrics",
        type=_metrics,
        metavar="HOST:PORT",
        help="address to serve metrics on, to everyone, for Prometheus; port 0 picks a free one; default: none",
    )
    _add_limits(parser)
    parser.add_argument(
        "--core",
        choices=["process", "thread"],
        default="process",
        help="run each model's core in a process or a thread",
    )


def add_doctor_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that examine instead of serving."""
    doctor = parser.add_argument_group("doctor")
    doctor.add_argument(
        "--doctor",
        nargs="?",
        const="",
        metavar="PATH",
        help="serve nothing: say what this machine can run, and what would come of this command line, "
        "and start the model at PATH, and each --model, once; exit status 1 if something does not work",
    )
    doctor.add_argument("--json", action="store_true", help="print what --doctor finds as JSON")


def _add_sources(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say where models may come from and be kept."""
    parser.add_argument(
        "--state-dir",
        type=Path,
        metavar="DIR",
        help="folder that keeps installed models across restarts; for one engine at a time",
    )
    parser.add_argument(
        "--model-root",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="folder that callers may install models from; repeatable; without one, callers cannot give paths",
    )
    parser.add_argument(
        "--write-root",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="folder that callers may have models written into, and install them from; repeatable; without one, "
        "models are written into memory only",
    )
    hubs = parser.add_mutually_exclusive_group()
    hubs.add_argument("--no-hub", action="store_true", help="disable hub access: model paths are local paths only")
    hubs.add_argument(
        "--hub",
        type=_hub,
        action="append",
        default=[],
        metavar="URL",
        help="hub that callers may use besides the engine's own; repeatable",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--core-ping-limit",
        type=seconds(above=0.0),
        default=30.0,
        metavar="SECONDS",
        help="time without progress after which a core is restarted; default %(default)g",
    )
    parser.add_argument(
        "--hand-over-failed",
        action="store_true",
        help="let clients continue requests of a model that fails for good, as when its card is lost, at another "
        "engine of their gateway that runs it; without this they end with an error",
    )
    parser.add_argument(
        "--file-limit",
        type=seconds(above=0.0),
        default=FILE_LIMIT,
        metavar="SECONDS",
        help="timeout of reading a model's files during an install, in case a file system hangs; default %(default)g",
    )
    parser.add_argument(
        "--stream-interval",
        type=seconds(),
        default=STREAM_INTERVAL,
        metavar="SECONDS",
        help="minimum interval between token messages of a request; tokens of faster steps are sent together; "
        "0: send after every step; default %(default)g",
    )
    parser.add_argument(
        "--step-target",
        type=seconds(),
        default=None,
        metavar="SECONDS",
        help="duration of a step to aim at when prompts are computed alongside running streams; "
        "0: use all of max_prefill_tokens; "
        f"default: {TIMES} times the duration of a step without prompts, at least {SHORTEST:g} and at most {LONGEST:g}",
    )


def _metrics(text: str) -> Address:
    try:
        return read_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f'"{text}" is not an address: {error}') from None


def _hub(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f'"{text}" is not the URL of a hub: it must begin with http:// or https://')
    return text
