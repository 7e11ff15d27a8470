"""Reflection, for grpcurl and its like."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection
from headrace.v1 import engine_service_pb2, model_service_pb2, request_service_pb2

SERVICES = tuple(
    service.full_name
    for file in (model_service_pb2, request_service_pb2, engine_service_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
)


class MethodFinder:
    """The default descriptor pool, which by itself finds the file of a service but not of a method."""

    def __init__(self) -> None:
        self._pool = descriptor_pool.Default()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:  # noqa: N802
        """The file of any symbol.

        Raises:
            KeyError: there is none.
        """
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            service, _, method = symbol.rpartition(".")
            return self._pool.FindServiceByName(service).methods_by_name[method].containing_service.file


def enable(server: grpc.aio.Server) -> None:
    """Serves reflection of our services, of health and of itself."""
    names = [*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME]
    reflection.enable_server_reflection(names, server, pool=MethodFinder())
