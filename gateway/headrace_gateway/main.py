"""The command line of the gateway."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from headrace_proto.pure.addresses import Address, read_address
from headrace_proto.server.arguments import OneLineParser, add_server_flags, log_json, seconds
from headrace_proto.server.listening import ListenError

from headrace_gateway import __version__
from headrace_gateway.options import EngineAddress, GatewayOptions

PROGRAM = "headrace-gateway"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the gateway. Return the exit status: 0 after a drain, 1 if it cannot listen. Exit with 2 on bad arguments."""
    options = parse(arguments)
    # gRPC's C library would print its own message for every refused connection and bind.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import uvloop
    from headrace_proto.server.logs import configure_service

    from headrace_gateway.server import serve

    configure_service("headrace_gateway", json=options.log_json, level=options.log_level)
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
            engines_file=given.engines_file,
            engines_dns=given.engines_dns,
            http=given.http,
            name=given.name,
            drain_limit=given.drain_limit,
            poll_interval=given.poll_interval,
            reflection=given.reflection,
            affinity=given.affinity,
            log_json=log_json(given.log_format),
            log_level=given.log_level,
        )
    except ValueError as error:
        parser.error(str(error))


def _parser() -> OneLineParser:
    parser = OneLineParser(PROGRAM, description="One gRPC address in front of one or many Headrace engines.")
    add = parser.add_argument
    add("--version", action="version", version=__version__)
    add_server_flags(parser, port=7070, running="calls in progress")
    add(
        "--engine",
        type=_engine,
        action="append",
        default=[],
        metavar="NAME=HOST:PORT",
        help="an engine to serve; repeat for each engine",
    )
    add(
        "--engines-file",
        type=Path,
        metavar="FILE",
        help="file with a line NAME=HOST:PORT for each engine; watched for changes",
    )
    add(
        "--engines-dns",
        type=_target,
        metavar="HOST:PORT",
        help="name whose addresses are the engines; asked for every second",
    )
    add(
        "--http",
        type=_http,
        metavar="HOST:PORT",
        help="address to serve OpenAI's and Anthropic's HTTP APIs on; port 0 picks a free one; default: none",
    )
    add("--name", default="gateway", help="name that GetServerInfo reports; default %(default)s")
    add(
        "--poll-interval",
        type=seconds(0.05),
        default=1.0,
        metavar="SECONDS",
        help="interval between health polls of an engine; default 1",
    )
    add(
        "--affinity",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="prefer the engine that has computed the beginning of a prompt; default: on",
    )
    return parser


def _engine(text: str) -> EngineAddress:
    try:
        return EngineAddress.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _target(text: str) -> Address:
    return _read(text, 1)


def _http(text: str) -> Address:
    return _read(text, 0)


def _read(text: str, least_port: int) -> Address:
    try:
        return read_address(text, least_port=least_port)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
