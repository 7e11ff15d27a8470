"""The command line of the gateway."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from headrace_proto.pure.addresses import Address, read_address
from headrace_proto.server.arguments import OneLineParser, add_server_flags, log_json, seconds
from headrace_proto.server.listening import ListenError
from headrace_proto.server.tls import CertificateError, add_tls_flags, certificates_of

from headrace_gateway import __version__
from headrace_gateway.access.api_keys import KeyFileError, new_key
from headrace_gateway.engine_security import EngineSecurity
from headrace_gateway.options import EngineAddress, GatewayOptions

PROGRAM = "headrace-gateway"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the gateway. Return the exit status: 0 after a drain, 1 if it cannot listen. Exit with 2 on bad arguments."""
    options = parse(arguments)
    # gRPC's C library would print its own message for every refused connection and bind.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import uvloop
    from headrace_proto.server.logs import configure_service
    from headrace_proto.server.traces import start_tracing

    from headrace_gateway.server import serve

    configure_service("headrace_gateway", json=options.log_json, level=options.log_level)
    flush = start_tracing(PROGRAM)
    try:
        uvloop.run(serve(options))
    except (ListenError, CertificateError, KeyFileError) as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return 1
    finally:
        flush()
    return 0


def parse(arguments: Sequence[str] | None = None) -> GatewayOptions:
    """Parse the command line. A wrong one ends the process with status 2 and one line on stderr."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.new_key is not None:
        _print_new_key(parser, given.new_key)
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
            spares=tuple(given.spare),
            certificates=certificates_of(given),
            engine_security=EngineSecurity(
                given.engine_ca, given.engine_cert, given.engine_key, given.engine_secret_file
            ),
            keys_file=given.keys,
            log_json=log_json(given.log_format),
            log_level=given.log_level,
        )
    except ValueError as error:
        parser.error(str(error))


def _print_new_key(parser: OneLineParser, name: str) -> NoReturn:
    """Print a key, and the lines that allow it, and end the process."""
    try:
        key, lines = new_key(name)
    except ValueError as error:
        parser.error(f"--new-key: {error}")
    sys.stdout.write(f"{key}\n")
    sys.stdout.flush()
    sys.stderr.write(f"# Append to the file of --keys; the key itself is stored nowhere.\n{lines}")
    parser.exit(0)


def _parser() -> OneLineParser:
    parser = OneLineParser(PROGRAM, description="One gRPC address in front of one or many Headrace engines.")
    add = parser.add_argument
    add("--version", action="version", version=__version__)
    add_server_flags(parser, port=7070, running="calls in progress")
    _add_engine_flags(parser)
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
    _add_security_flags(parser)
    return parser


def _add_engine_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
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
        "--spare",
        action="append",
        default=[],
        metavar="NAME",
        help="engine that gets a request only where no other takes it, such as one on CPUs beside cards; repeatable",
    )


def _add_security_flags(parser: argparse.ArgumentParser) -> None:
    add_tls_flags(parser)
    keys = parser.add_argument_group("API keys")
    keys.add_argument(
        "--keys", type=Path, metavar="FILE", help="TOML file of API keys, read again when it changes; default: none"
    )
    keys.add_argument(
        "--new-key",
        metavar="NAME",
        help="print a new random key, and the lines of the key file that allow it, and exit",
    )
    engines = parser.add_argument_group("connections to engines")
    engines.add_argument(
        "--engine-ca", type=Path, metavar="FILE", help="PEM file of the engines' authorities; default: no encryption"
    )
    engines.add_argument(
        "--engine-cert", type=Path, metavar="FILE", help="PEM file of a certificate to show to engines"
    )
    engines.add_argument("--engine-key", type=Path, metavar="FILE", help="PEM file of its private key")
    engines.add_argument(
        "--engine-secret-file", type=Path, metavar="FILE", help="file of the secret that engines ask for"
    )


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
