"""Transports of calls over gRPC, for threads and for event loops."""
