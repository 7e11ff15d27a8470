"""The module `headrace_proto.v1.request_pb2`."""

import sys

from headrace_proto.v1 import request_pb2
from headrace_proto.v1.request_pb2 import *

sys.modules[__name__] = request_pb2
