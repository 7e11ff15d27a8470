"""The module `headrace_proto.v1.request_service_pb2`."""

import sys

from headrace_proto.v1 import request_service_pb2
from headrace_proto.v1.request_service_pb2 import *

sys.modules[__name__] = request_service_pb2
