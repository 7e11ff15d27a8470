"""The module `headrace_proto.v1.engine_service_pb2_grpc`."""

import sys

from headrace_proto.v1 import engine_service_pb2_grpc

sys.modules[__name__] = engine_service_pb2_grpc
