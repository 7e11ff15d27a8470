"""The module `headrace_proto.v1.runtime_pb2`."""

import sys

from headrace_proto.v1 import runtime_pb2
from headrace_proto.v1.runtime_pb2 import *

sys.modules[__name__] = runtime_pb2
