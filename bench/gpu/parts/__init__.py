"""Measurements of `make gpu-bench`: its parts and their cases, what is expected of them, and their record."""
