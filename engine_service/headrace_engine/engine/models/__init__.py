"""Installed models: their life cycle, their cores, and what is kept of them over restarts."""
