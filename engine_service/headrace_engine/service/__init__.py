"""The gRPC service of the engine: the only package that knows the wire contract."""
