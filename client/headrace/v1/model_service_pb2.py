"""The module `headrace_proto.v1.model_service_pb2`."""

import sys

from headrace_proto.v1 import model_service_pb2
from headrace_proto.v1.model_service_pb2 import *

sys.modules[__name__] = model_service_pb2
