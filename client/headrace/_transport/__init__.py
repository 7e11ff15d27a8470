"""Carriers of calls: gRPC, with threads and in an event loop."""
