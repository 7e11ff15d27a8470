"""Readers of model files: what their headers describe, bounds checked, before any value is read."""
