"""The unary calls of the gRPC contract as JSON over HTTP."""
