"""Shared parts of measurements: pages of results, the machine, models, environment variables."""
