"""vLLM's gRPC service over this engine's calls, for fronts that speak it. Needs the extra `smg`."""
