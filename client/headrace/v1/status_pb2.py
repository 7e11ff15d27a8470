"""The module `headrace_proto.v1.status_pb2`."""

import sys

from headrace_proto.v1 import status_pb2
from headrace_proto.v1.status_pb2 import *

sys.modules[__name__] = status_pb2
