"""Metrics of the engine for Prometheus, over an HTTP port of their own."""
