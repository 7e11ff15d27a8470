"""Command lines of servers."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from typing import NoReturn

from headrace_proto.pure.addresses import Address, read_address

LOG_FORMATS = ("auto", "json", "console")
LOG_LEVELS = ("debug", "info", "warning", "error")


class OneLineParser(argparse.ArgumentParser):
    """Reports errors in one line."""

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with status 2."""
        self.exit(2, f"{self.prog}: {message}\n")


def add_server_flags(parser: argparse.ArgumentParser, *, port: int, running: str) -> None:
    """Add the arguments that every server takes.

    Args:
        port: default port.
        running: what a drain waits for, such as "calls in progress".
    """
    add = parser.add_argument
    add(
        "--listen",
        type=_address,
        default=f"127.0.0.1:{port}",
        metavar="HOST:PORT",
        help="address to listen on; port 0 picks a free one; default %(default)s",
    )
    add(
        "--drain-limit",
        type=seconds(),
        default=30.0,
        metavar="SECONDS",
        help=f"time that {running} have to end after SIGTERM; default %(default)g",
    )
    add(
        "--log-format",
        choices=LOG_FORMATS,
        default="auto",
        help="log format; default auto: console on a terminal, else json",
    )
    add(
        "--log-level",
        choices=LOG_LEVELS,
        default="info",
        help="minimum level of events; debug also logs texts that may quote requests; default %(default)s",
    )
    add("--reflection", action=argparse.BooleanOptionalAction, default=True, help="serve gRPC reflection; default: on")


def log_json(log_format: str) -> bool:
    """True if logs are to be JSON: as the format says, or where stderr is no terminal."""
    return log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())


def seconds(least: float = 0.0, *, above: float | None = None) -> Callable[[str], float]:
    """Return the reader of an argument in seconds: at least `least`, or more than `above`."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value < math.inf or (above is not None and value <= above):
            allowed = f"{least:g} or more" if above is None else f"more than {above:g}"
            raise argparse.ArgumentTypeError(f'"{text}" is not a number of seconds, {allowed}')
        return value

    return read


def _address(text: str) -> Address:
    try:
        return read_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f'"{text}" is not an address: {error}') from None
