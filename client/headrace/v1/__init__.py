"""The wire code under the client's name: its modules are those of `headrace_proto.v1`."""
