"""The module `headrace_proto.v1.generation_pb2`."""

import sys

from headrace_proto.v1 import generation_pb2
from headrace_proto.v1.generation_pb2 import *

sys.modules[__name__] = generation_pb2
