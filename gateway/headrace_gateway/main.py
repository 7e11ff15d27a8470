"""The command line of the gateway."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from headrace_proto.server.arguments import OneLineParser
from headrace_proto.server.listening import Address, ListenError

from headrace_gateway import __version__
from headrace_gateway.options import LOG_FORMATS, EngineAddress, GatewayOptions, parse_address

PROGRAM = "headrace-gateway"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the gateway. Return the exit status: 0 after a drain, 1 if it cannot listen. Exit with 2 on bad arguments."""
    options = parse(arguments)
    # gRPC's C library would print its own message for every refused connection and bind.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import uvloop

    from headrace_gateway import logs
    from headrace_gateway.server import serve

    logs.configure(options.log_format)
    try:
        uvloop.run(serve(options))
    except ListenError as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return 1
    return 0


def parse(arguments: Sequence[str] | None = None) -> GatewayOptions:
    """Parse the command line. A wrong one ends the process with status 2 and one line on stderr."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        return GatewayOptions(
            listen=given.listen,
            engines=tuple(given.engine),
            name=given.name,
            drain_limit=given.drain_limit,
            poll_interval=given.poll_interval,
            reflection=given.reflection,
            log_format=given.log_format,
        )
    except ValueError as error:
        parser.error(str(error))


def _parser() -> OneLineParser:
    parser = OneLineParser(PROGRAM, description="One gRPC address in front of one or many Headrace engines.")
    add = parser.add_argument
    add("--version", action="version", version=__version__)
    add(
        "--listen",
        type=_address,
        default="127.0.0.1:7070",
        metavar="HOST:PORT",
        help="address to listen on; port 0 picks a free one; default %(default)s",
    )
    add(
        "--engine",
        type=_engine,
        action="append",
        required=True,
        metavar="NAME=HOST:PORT",
        help="an engine to serve; repeat for each engine",
    )
    add("--name", default="gateway", help="name that GetServerInfo reports; default %(default)s")
    add(
        "--drain-limit",
        type=_seconds,
        default=30.0,
        metavar="SECONDS",
        help="time that calls in progress have to end after SIGTERM; default 30",
    )
    add(
        "--poll-interval",
        type=_interval,
        default=1.0,
        metavar="SECONDS",
        help="interval between health polls of an engine; default 1",
    )
    add("--reflection", action=argparse.BooleanOptionalAction, default=True, help="serve gRPC reflection; default: on")
    add(
        "--log-format",
        choices=LOG_FORMATS,
        default="auto",
        help="log format; default auto: console on a terminal, else json",
    )
    return parser


def _address(text: str) -> Address:
    try:
        return parse_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _engine(text: str) -> EngineAddress:
    try:
        return EngineAddress.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _seconds(text: str) -> float:
    return _number(text, 0.0)


def _interval(text: str) -> float:
    return _number(text, 0.05)


def _number(text: str, least: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= 86_400:
        raise argparse.ArgumentTypeError(f'"{text}" is not a number of seconds from {least:g} to 86400')
    return value
