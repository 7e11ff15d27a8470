"""Installed models: their life cycle, and their state over restarts."""
