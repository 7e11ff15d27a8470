"""Installed models: their life cycle, their cores, and their state over restarts."""
