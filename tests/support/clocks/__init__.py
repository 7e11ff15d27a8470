"""Clocks that tests move, and waiting for what happens in its own time."""
