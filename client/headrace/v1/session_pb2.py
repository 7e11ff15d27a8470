"""The module `headrace_proto.v1.session_pb2`."""

import sys

from headrace_proto.v1 import session_pb2
from headrace_proto.v1.session_pb2 import *

sys.modules[__name__] = session_pb2
