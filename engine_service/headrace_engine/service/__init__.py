"""gRPC in, gRPC out: the only place that knows the wire."""
