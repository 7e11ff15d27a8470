"""The module `headrace_proto.v1.model_service_pb2_grpc`."""

import sys

from headrace_proto.v1 import model_service_pb2_grpc

sys.modules[__name__] = model_service_pb2_grpc
