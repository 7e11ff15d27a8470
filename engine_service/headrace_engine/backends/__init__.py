"""Backends: each implements core.runner.Runner for one kind of device."""
