"""The module `headrace_proto.v1.engine_service_pb2`."""

import sys

from headrace_proto.v1 import engine_service_pb2
from headrace_proto.v1.engine_service_pb2 import *

sys.modules[__name__] = engine_service_pb2
