"""Reflection, for grpcurl and its like."""

from __future__ import annotations

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection
from headrace_proto.server.method_finder import MethodFinder
from headrace_proto.v1 import engine_service_pb2, model_service_pb2, request_service_pb2

SERVICES = tuple(
    service.full_name
    for file in (model_service_pb2, request_service_pb2, engine_service_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
)

DETAILS = (status_pb2.DESCRIPTOR, error_details_pb2.DESCRIPTOR)
"""What reflection knows besides: failures carry these, and a tool that shows one asks what they are."""


def enable(server: grpc.aio.Server) -> None:
    """Serves reflection of our services, of health and of itself."""
    names = [*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME]
    reflection.enable_server_reflection(names, server, pool=MethodFinder())
