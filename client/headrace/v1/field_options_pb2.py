"""The module `headrace_proto.v1.field_options_pb2`."""

import sys

from headrace_proto.v1 import field_options_pb2
from headrace_proto.v1.field_options_pb2 import *

sys.modules[__name__] = field_options_pb2
