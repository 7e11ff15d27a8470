"""Blocking work: thread pools by kind, side processes, and fair queues."""
