"""The module `headrace_proto.v1.stat_pb2`."""

import sys

from headrace_proto.v1 import stat_pb2
from headrace_proto.v1.stat_pb2 import *

sys.modules[__name__] = stat_pb2
