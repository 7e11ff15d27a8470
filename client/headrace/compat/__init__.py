"""Shared parts of the packages with other systems' APIs: opening a client, and running a model over it."""
