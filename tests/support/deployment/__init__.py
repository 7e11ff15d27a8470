"""Distributions that are built and installed, and containers."""
