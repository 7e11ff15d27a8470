"""Asks a server for its health by the standard gRPC protocol: exit status 0 is SERVING, 1 anything else.

Usage: probe.py [--ca=FILE] HOST:PORT [SERVICE]. With a PEM file of authorities it speaks TLS. Without a service it asks
for headrace.v1.ModelService, which is SERVING as soon as models can be installed; "" and headrace.v1.RequestService
wait for a running model.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

DEFAULT_SERVICE = "headrace.v1.ModelService"
TIMEOUT = 4.0
"""Seconds; below the timeout of the health checks that run this."""


def status(address: str, service: str, authorities: bytes | None) -> str:
    """Return a service's status by the server, or the code of the failed call."""
    with _channel(address, authorities) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=TIMEOUT)
        except grpc.RpcError as error:
            return str(error.code().name)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def _channel(address: str, authorities: bytes | None) -> grpc.Channel:
    if authorities is None:
        return grpc.insecure_channel(address)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(authorities))


def main(arguments: Sequence[str]) -> int:
    """Print one line and return the exit status."""
    parser = argparse.ArgumentParser(prog="probe.py", description="Ask a server for its health.")
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument("service", nargs="?", default=DEFAULT_SERVICE, metavar="SERVICE")
    parser.add_argument("--ca", type=Path, metavar="FILE", help="PEM file of authorities, to speak TLS")
    given = parser.parse_args(arguments)
    try:
        authorities = None if given.ca is None else given.ca.read_bytes()
    except OSError as error:
        parser.error(f"--ca: {given.ca}: {error.strerror}")
    answer = status(given.address, given.service, authorities)
    print(f'{given.address} "{given.service}": {answer}')
    return 0 if answer == "SERVING" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
