"""gRPC reflection, for tools such as grpcurl."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from headrace_proto.v1 import engine_service_pb2, model_service_pb2, request_service_pb2

SERVICES = (
    *(
        service.full_name
        for file in (engine_service_pb2, model_service_pb2, request_service_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
    ),
    health.SERVICE_NAME,
    reflection.SERVICE_NAME,
)
"""Services that reflection lists."""

DETAILS = (status_pb2.DESCRIPTOR, error_details_pb2.DESCRIPTOR)
"""Further messages that reflection describes: failures carry them, and tools look them up to show a failure."""


def enable(server: grpc.aio.Server) -> None:
    """Serve reflection of our services, of health and of itself."""
    reflection.enable_server_reflection(SERVICES, server, pool=MethodFinder())


class MethodFinder:
    """The default descriptor pool, extended to find the file of a method, not only of a service."""

    def __init__(self) -> None:
        self._pool = descriptor_pool.Default()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:  # noqa: N802
        """Return the file of any symbol.

        Raises:
            KeyError: no file defines it.
        """
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            service, _, method = symbol.rpartition(".")
            return self._pool.FindServiceByName(service).methods_by_name[method].containing_service.file
