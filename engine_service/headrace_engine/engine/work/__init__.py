"""Blocking work: thread pools by kind, side processes, and what is shared fairly."""
