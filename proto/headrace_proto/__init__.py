"""The wire contract of Headrace, and what its clients and servers share. `headrace_proto.v1` is generated code."""

__version__ = "0.1.0"
