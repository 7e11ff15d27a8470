"""Asks a server for its health by the standard gRPC protocol: exit status 0 is SERVING, 1 anything else.

Usage: probe.py HOST:PORT [SERVICE]. Without a service it asks for headrace.v1.ModelService, which is SERVING as soon as
models can be installed; "" and headrace.v1.RequestService wait for a running model.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

DEFAULT_SERVICE = "headrace.v1.ModelService"
TIMEOUT = 4.0
"""Seconds; below the timeout of the health checks that run this."""


def status(address: str, service: str) -> str:
    """Return a service's status by the server, or the code of the failed call."""
    with grpc.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=TIMEOUT)
        except grpc.RpcError as error:
            return str(error.code().name)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def main(arguments: Sequence[str]) -> int:
    """Print one line and return the exit status."""
    if len(arguments) not in (1, 2):
        print("usage: probe.py HOST:PORT [SERVICE]", file=sys.stderr)
        return 2
    address, service = arguments[0], arguments[1] if len(arguments) == 2 else DEFAULT_SERVICE
    answer = status(address, service)
    print(f'{address} "{service}": {answer}')
    return 0 if answer == "SERVING" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
